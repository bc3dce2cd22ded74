"""The planner's schedule against the real scheduler in real time, with stages that sleep.

    python benchmark/validate_schedule.py [--out benchmark/results/schedule_validation.txt]

`Scheduler.event_loop_pp` runs as on a server; each stage is a thread that sleeps for t(L, x) where
a real one computes. Kernels, and how busy the machine is, therefore play hardly any part: what is
compared is when the scheduler issues what, on up to 16 stages.
"""

from __future__ import annotations

import argparse
import os
import queue
import select
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python"))

from sglang.plan_pipeline.profile import parse_profile  # noqa: E402
from sglang.plan_pipeline.report import seconds, table  # noqa: E402
from sglang.plan_pipeline.simulator import (  # noqa: E402
    SimConfig,
    SimRequest,
    build_memory,
    chunk_budget,
    simulate,
)
from sglang.plan_pipeline.stages import compute_seconds  # noqa: E402
from sglang.srt.managers.io_struct import BatchTokenOut, TokenizedGenerateReqInput  # noqa: E402
from sglang.srt.managers.scheduler import Scheduler, SchedulerConfig  # noqa: E402
from sglang.srt.managers.step_plan import (  # noqa: E402
    StageSpan,
    StepPlan,
    StepResult,
    TokenResult,
)
from sglang.srt.sampling.sampling_params import SamplingParams  # noqa: E402

# 16 layers, every fourth attention; about 7 s for 4096 tokens on one stage. Slow enough that what
# a thread needs to wake up on a busy machine (about a millisecond) does not count.
PROFILE = {"total": {"a": 1e-7, "b": 1e-3, "c": 4e-2, "g": 1e-5}, "layers": "LLLA" * 4}
CHUNK = 256


class SleepingPipeline:
    """Stages that sleep. Stage 0 sleeps in `submit`, the others in threads of their own."""

    def __init__(self, models: Sequence[Any]) -> None:
        self._models = models
        self._queues: list[queue.SimpleQueue[Any]] = [queue.SimpleQueue() for _ in models]
        self._results: queue.SimpleQueue[StepResult] = queue.SimpleQueue()
        self._wake_read, self._wake_write = os.pipe()
        for stage in range(1, len(models)):
            threading.Thread(target=self._run, args=(stage,), daemon=True).start()

    def submit(self, plan: StepPlan) -> None:
        """Stage 0's part, now."""
        self._compute(0, plan, [])

    def poll(self, timeout_s: float) -> StepResult | None:
        """The next result."""
        try:
            result = self._results.get(timeout=timeout_s) if timeout_s else self._results.get(False)
        except queue.Empty:
            return None
        os.read(self._wake_read, 1)
        return result

    def fileno(self) -> int:
        """Readable when a result is there."""
        return self._wake_read

    def _run(self, stage: int) -> None:
        while True:
            plan, spans = self._queues[stage].get()
            self._compute(stage, plan, spans)

    def _compute(self, stage: int, plan: StepPlan, spans: list[StageSpan]) -> None:
        started = time.monotonic()
        rows = list(zip(plan.prefix_lens, plan.extend_lens, strict=True))
        time.sleep(compute_seconds(self._models[stage], rows))
        spans = [*spans, StageSpan(started, started, time.monotonic())]
        if stage + 1 < len(self._models):
            self._queues[stage + 1].put((plan, spans))
            return
        self._results.put(StepResult(plan.seq, [TokenResult(3)] * len(plan.sample_rows), spans))
        os.write(self._wake_write, b"!")


class Client:
    """Both ends of the scheduler's channels: all requests come at once; the last answer ends it."""

    def __init__(self, lengths: Sequence[int]) -> None:
        params = SamplingParams(max_new_tokens=1, temperature=0, ignore_eos=True)
        self._messages = [
            TokenizedGenerateReqInput(str(i), [3] * n, params) for i, n in enumerate(lengths)
        ]
        self._left = len(lengths)
        self.started = time.monotonic()
        self.answered: dict[str, float] = {}
        self.scheduler: Scheduler | None = None

    def recv_nowait(self) -> Any:
        """The next request."""
        return self._messages.pop(0) if self._messages else None

    def poll(self, timeout_ms: int, extra_fds: Sequence[int] = ()) -> bool:
        """Wait for a result."""
        return bool(select.select(extra_fds, [], [], timeout_ms / 1e3)[0])

    def send(self, message: Any) -> None:
        """Note an answer."""
        if not isinstance(message, BatchTokenOut):
            return
        for out in message.outs:
            self.answered[out.rid] = time.monotonic() - self.started
            self._left -= out.finish_reason is not None
        if self._left == 0 and self.scheduler is not None:
            self.scheduler.stopping = True

    def close(self) -> None:
        """Nothing is open."""


def run_real(config: SimConfig, lengths: Sequence[int]) -> list[float]:
    """Seconds until each request's first token, in real time."""
    memory = build_memory(config, [n + 1 for n in lengths])
    client = Client(lengths)
    scheduler = Scheduler(
        SchedulerConfig(
            pp_size=config.pp_size, chunked_prefill_size=config.chunk_size,
            max_req_len=max(lengths) + 1, context_len=max(lengths) + 1,
            enable_dynamic_chunking=config.smooth is not None,
        ),
        memory, SleepingPipeline(config.models), client, client,
    )  # fmt: skip
    if config.smooth is not None:
        scheduler.planner.budget = chunk_budget(config, memory.grid)
    client.scheduler = scheduler
    client.started = time.monotonic()
    scheduler.event_loop_pp()
    return [client.answered[str(i)] for i in range(len(lengths))]


def compare(rounds: int) -> str:
    """The table."""
    profile = parse_profile(PROFILE)
    cells = [["pp", "chunks", "prompts", "measured", "predicted", "error"]]
    errors = []
    for pp in (1, 2, 3, 4, 8, 16):
        for smooth in (None, 0.75):
            for lengths in ([4096], [1024] * 4):
                config = SimConfig(profile.divided(pp), CHUNK, smooth, has_states=True)
                measured = median(max(run_real(config, lengths)) for _ in range(rounds))
                result = simulate(config, [SimRequest(n) for n in lengths])
                predicted = max(result.time_to_first_token_s)
                errors.append(predicted / measured - 1)
                cells.append(
                    [
                        str(pp), "static" if smooth is None else f"dynamic {smooth}",
                        f"{len(lengths)} x {lengths[0]}", seconds(measured), seconds(predicted),
                        f"{errors[-1]:+.1%}",
                    ]
                )  # fmt: skip
    lines = [
        f"time to the last first token, median of {rounds}; stages sleep for t(L, x)",
        table(cells),
        f"error: median {median(map(abs, errors)):.1%}, largest {max(map(abs, errors)):.1%}",
    ]
    return "\n".join(lines)


def main() -> None:
    """Compare, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    text = f"command: python benchmark/validate_schedule.py --rounds {arguments.rounds}\n"
    text += compare(arguments.rounds)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
