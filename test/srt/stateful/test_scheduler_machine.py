"""The whole scheduler over a model whose answers are wrong as soon as a slot is.

Requests come, stop, are aborted and pushed back in any order, results come late, pools are so
small that something always has to give way. Every answer is compared with the model's own, both
leak checks run after every step, and at the end nothing may be held.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from sglang.srt.managers.runtime_checker import check_memory
from support.fake_runner import expected_output
from support.scheduler_harness import Harness, Shape

VOCAB = 97
# Shared beginnings, with lengths around pages, chunks and the state grid.
PREFIX_LENS = (1, 3, 15, 16, 17, 48, 63, 64, 65, 96, 120)
PREFIXES = [[(i * i * 7 + i + seed * 31) % VOCAB for i in range(128)] for seed in range(3)]
CHUNKS = (1, 3, 7, 16, 64, 100, 1024, None)


@st.composite
def shapes(draw) -> tuple[Shape, dict]:
    """Pools and settings that can run at least one request."""
    radix = draw(st.integers(0, 4)) > 0
    extra = radix and draw(st.booleans())
    shape = Shape(
        num_tokens=draw(st.sampled_from([256, 320, 512])),
        num_states=draw(st.sampled_from([2, 3, 5, 9, 20])),
        page_size=draw(st.sampled_from([1, 4, 16, 64])),
        hybrid=draw(st.integers(0, 3)) > 0,
        radix=radix,
        extra_buffer=extra,
        track_interval=draw(st.sampled_from([0, 16, 64, 100])),
        delay=draw(st.sampled_from([0, 1, 3])),
    )
    running = draw(st.integers(1, 6))
    if shape.hybrid:
        running = min(running, shape.num_states // (2 if extra else 1))
    config = {
        "pp_size": draw(st.integers(1, 3)),
        "pp_async_batch_depth": draw(st.integers(0, 1)),
        "pp_max_micro_batch_size": draw(st.sampled_from([None, None, 1, 2])),
        "max_running_requests": running,
        "chunked_prefill_size": draw(st.sampled_from(CHUNKS)),
        "enable_mixed_chunk": draw(st.booleans()),
        "schedule_policy": draw(st.sampled_from(["fcfs", "lpm"])),
        "max_queued_requests": draw(st.sampled_from([None, None, 3])),
    }
    return shape, config


class SchedulerMachine(RuleBasedStateMachine):
    """`want` maps each accepted request to its right answer."""

    @initialize(settings=shapes())
    def start(self, settings: tuple[Shape, dict]) -> None:
        self.shape, config = settings
        self.harness = Harness(self.shape, **config)
        self.want: dict[str, list[int]] = {}
        self.prompt_len: dict[str, int] = {}

    def _send(self, prompt: list[int], num_new: int, stop: list[int]) -> None:
        rid = f"r{len(self.want)}"
        num_new = min(num_new, self.harness.config.max_req_len - len(prompt))
        if num_new < 0 or not prompt:
            return
        self.harness.add(rid, prompt, num_new, stop_token_ids=stop)
        self.want[rid] = expected_output(prompt, num_new, VOCAB, set(stop))
        self.prompt_len[rid] = len(prompt)

    @rule(
        prefix=st.sampled_from(PREFIXES),
        shared=st.sampled_from(PREFIX_LENS),
        own=st.lists(st.integers(0, VOCAB - 1), max_size=20),
        num_new=st.integers(0, 60),
        stop=st.lists(st.integers(0, VOCAB - 1), max_size=3),
    )
    def request(
        self, prefix: list[int], shared: int, own: list[int], num_new: int, stop: list[int]
    ) -> None:
        self._send(prefix[:shared] + own, num_new, stop)

    @precondition(lambda self: self.want)
    @rule(pick=st.integers(0, 99), own=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=9))
    def next_turn(self, pick: int, own: list[int]) -> None:
        """Go on from an answered request: its prompt, its reply, and something new."""
        done = [
            self.harness.prompts[rid] + self.harness.outputs[rid]
            for rid, reason in self.harness.finished.items()
            if reason.type != "abort" and rid in self.harness.prompts
        ]
        if done:
            self._send(done[pick % len(done)] + own, 20, [])

    @rule(count=st.integers(1, 12))
    def steps(self, count: int) -> None:
        for _ in range(count):
            self.harness.step()
        self._check()

    @precondition(lambda self: self.want)
    @rule(pick=st.integers(0, 99), steps=st.integers(0, 3))
    def abort(self, pick: int, steps: int) -> None:
        for _ in range(steps):
            self.harness.step()
        self.harness.abort(f"r{len(self.want) - 1 - pick % min(len(self.want), 6)}")

    @precondition(lambda self: self.harness.scheduler.planner.running)
    @rule(pick=st.integers(0, 99))
    def push_back(self, pick: int) -> None:
        """Any running request may be retracted at any moment, not just under pressure."""
        running = self.harness.scheduler.planner.running
        self.harness.scheduler.planner.retract(running[pick % len(running)])
        self._check()

    @rule()
    def flush(self) -> None:
        """Refused with the reason while anybody uses the cache, done otherwise."""
        self.harness.step()
        busy = bool(self.harness.scheduler.reqs)
        reply = self.harness.control("flush_cache")
        assert reply.success is not busy
        assert ("request(s) are running" in reply.message) is busy
        self._check()

    @rule()
    def answer_all(self) -> None:
        self.harness.run()
        self._check()

    def _check(self) -> None:
        scheduler = self.harness.scheduler
        check_memory(scheduler.memory, scheduler.live_reqs())
        for rid, tokens in self.harness.outputs.items():
            assert tokens == self.want[rid][: len(tokens)], rid
        for req in scheduler.planner.waiting:
            holds = (req.req_pool_idx, req.mamba_pool_idx, req.mamba_track_idx, req.last_node)
            assert holds == (None, None, None, None) and not req.tracked and not req.kv_len
        assert len(scheduler.planner.running) <= self.harness.config.max_running_requests

    def teardown(self) -> None:
        if not hasattr(self, "harness"):
            return
        harness = self.harness
        harness.run()
        self._check()
        for rid, want in self.want.items():
            reason = harness.finished[rid]
            if reason.type == "abort":
                continue
            assert harness.outputs[rid] == want, rid
            limit = self.prompt_len[rid] - 1
            assert 0 <= harness.cached[rid] <= max(limit, 0)
            assert harness.cached[rid] == 0 or self.shape.radix
        for name, pool in harness.scheduler.pool_report().items():
            assert pool["held"] == pool["protected"] == 0, (name, pool)
        assert harness.control("flush_cache").success
        for name, pool in harness.scheduler.pool_report().items():
            assert pool["available"] == pool["total"], (name, pool)


TestScheduler = SchedulerMachine.TestCase
