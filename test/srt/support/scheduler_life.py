"""One random life of a scheduler, by seed: the same checks as the rule machine, without a search.

Fast enough to run under every seeded fault.
"""

from __future__ import annotations

import random
from typing import Any

from .fake_runner import expected_output
from .scheduler_harness import Harness, Shape

VOCAB = 97


def _shape(rng: random.Random) -> tuple[Shape, dict[str, Any]]:
    extra = rng.random() < 0.4
    shape = Shape(
        num_tokens=rng.choice([192, 192, 256]),
        num_states=rng.choice([2, 3, 6, 8]),
        page_size=rng.choice([1, 1, 4, 16]),
        hybrid=rng.random() < 0.85,
        radix=extra or rng.random() < 0.9,
        extra_buffer=extra,
        track_interval=rng.choice([16, 32, 64]),
        delay=rng.choice([0, 1, 3]),
    )
    running = min(rng.choice([2, 4, 6]), shape.num_states // (2 if extra else 1))
    return shape, {
        "pp_size": rng.choice([1, 2, 3]),
        "max_req_len": 180,
        "max_running_requests": running,
        "chunked_prefill_size": rng.choice([16, 64, 100]),
        "enable_mixed_chunk": rng.random() < 0.4,
        "schedule_policy": rng.choice(["fcfs", "lpm"]),
    }


def live(seed: int, num_requests: int = 10) -> Harness:
    """Serve random requests with shared beginnings under pressure; raises on any wrong answer,
    any leak, and anything still held at the end."""
    rng = random.Random(seed)
    shape, config = _shape(rng)
    harness = Harness(shape, **config)
    beginnings = [[rng.randrange(VOCAB) for _ in range(70)] for _ in range(2)]
    want: dict[str, list[int]] = {}
    for i in range(num_requests):
        shared = rng.choice(beginnings)[: rng.choice([16, 48, 64, 65])]
        prompt = shared + [rng.randrange(VOCAB) for _ in range(rng.randrange(1, 6))]
        num_new = rng.choice([2, 3, 20, 90])
        harness.add(f"r{i}", prompt, num_new)
        want[f"r{i}"] = expected_output(prompt, num_new, VOCAB, set())
        for _ in range(rng.choice([0, 0, 1, 12])):
            harness.step()
        if rng.random() < 0.15:
            harness.abort(f"r{rng.randrange(i + 1)}")
        running = harness.scheduler.planner.running
        if running and rng.random() < 0.25:
            harness.scheduler.planner.retract(rng.choice(running))
    harness.run(5000)
    for rid, answer in want.items():
        whole = harness.finished[rid].type != "abort"
        tokens = harness.outputs[rid]
        assert tokens == (answer if whole else answer[: len(tokens)]), rid
    for name, pool in harness.scheduler.pool_report().items():
        assert pool["held"] == pool["protected"] == 0, (name, pool)
    return harness
