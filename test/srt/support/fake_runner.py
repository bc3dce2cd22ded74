"""A runner without a model whose answers are wrong as soon as any slot is.

The "model" is a rolling hash over the tokens. It is kept twice, as hybrid models keep their past:
in a KV array by slot (each position stores its token and the hash up to it) and in a state array
by Mamba slot. Every step reads both through page table and slot indices, checks them against each
other, and derives the next token from them. A stale page table, a slot handed out twice, a state
saved at the wrong position or never restored: each changes the answer or raises.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from sglang.srt.managers.step_plan import (
    StageSpan,
    StepPlan,
    StepResult,
    TokenResult,
    unpack_ints,
)

MODULUS = 1_000_003


def step_hash(state: int, token: int) -> int:
    """The hash after one more token."""
    return (state * 31 + token * 7 + 1) % MODULUS


def next_token(state: int, vocab_size: int) -> int:
    """The greedy token of a state."""
    return state % vocab_size


def expected_output(
    prompt: list[int], num_tokens: int, vocab_size: int, stop: set[int]
) -> list[int]:
    """What a request must be answered, computed without any scheduler."""
    state = 0
    for token in prompt:
        state = step_hash(state, token)
    output: list[int] = []
    while len(output) < num_tokens:
        output.append(next_token(state, vocab_size))
        if output[-1] in stop:
            break
        state = step_hash(state, output[-1])
    return output


@dataclass
class FakeStage:
    """Executes plans on arrays in place of tensors."""

    num_tokens: int
    page_size: int
    num_states: int
    num_req_slots: int
    width: int
    vocab_size: int
    log: list[StepPlan] = field(default_factory=list)

    def __post_init__(self) -> None:
        size = self.num_tokens + self.page_size
        self.kv_token = np.full(size, -1, dtype=np.int64)
        self.kv_hash = np.full(size, -1, dtype=np.int64)
        self.state = np.full(self.num_states + 1, -7, dtype=np.int64)
        self.table = np.zeros((self.num_req_slots + 1, self.width), dtype=np.int64)

    def execute(self, plan: StepPlan) -> StepResult:
        """Run a plan; raises AssertionError when what it reads is not what was written."""
        self.log.append(plan)
        for slot, start, packed in plan.table_updates:
            slots = unpack_ints(packed)
            self.table[slot, start : start + len(slots)] = slots
        self.state[plan.zero_states] = 0
        if plan.copy_states:
            self.state[[b for _, b in plan.copy_states]] = self.state[
                [a for a, _ in plan.copy_states]
            ]
        self._write_kv(plan)
        hybrid = bool(plan.mamba_indices)
        last = []
        at = 0
        ids = unpack_ints(plan.input_ids)
        for row, (start, count) in enumerate(zip(plan.prefix_lens, plan.extend_lens, strict=True)):
            state = self._past(plan, row, start, hybrid)
            for offset in range(count):
                state = step_hash(state, int(ids[at + offset]))
                self.kv_hash[self.table[plan.req_pool_indices[row], start + offset]] = state
                self._track(plan, row, start + offset + 1, state)
            if hybrid:
                self.state[plan.mamba_indices[row]] = state
            last.append(state)
            at += count
        tokens = [TokenResult(next_token(last[row], self.vocab_size)) for row in plan.sample_rows]
        return StepResult(plan.seq, tokens, [StageSpan(0.0, 0.0, 0.001)])

    def _write_kv(self, plan: StepPlan) -> None:
        ids, loc = unpack_ints(plan.input_ids), unpack_ints(plan.out_cache_loc)
        assert len(ids) == len(loc) == sum(plan.extend_lens)
        assert len(set(loc.tolist())) == len(loc), "a plan writes a KV slot twice"
        at = 0
        for slot, start, count in zip(
            plan.req_pool_indices, plan.prefix_lens, plan.extend_lens, strict=True
        ):
            self.table[slot, start : start + count] = loc[at : at + count]
            at += count
        self.kv_token[loc] = ids
        self.kv_hash[loc] = -1

    def _past(self, plan: StepPlan, row: int, start: int, hybrid: bool) -> int:
        slots = self.table[plan.req_pool_indices[row], :start]
        tokens, hashes = self.kv_token[slots], self.kv_hash[slots]
        before = np.concatenate([[0], hashes[:-1]])[:start]
        # Every position must have been computed from exactly the positions before it.
        right = (before * 31 + tokens * 7 + 1) % MODULUS == hashes
        assert bool(right.all()), f"plan {plan.seq} row {row}: foreign KV"
        state = int(hashes[-1]) if start else 0
        if hybrid:
            kept = int(self.state[plan.mamba_indices[row]])
            assert state == kept, f"plan {plan.seq} row {row}: state is not of these tokens"
        return state

    def _track(self, plan: StepPlan, row: int, position: int, state: int) -> None:
        for tracked_row, tracked_position, slot in plan.track_states:
            if tracked_row == row and tracked_position == position:
                self.state[slot] = state


class FakePipeline:
    """A pipeline whose results come back late: `delay` further polls after a plan was issued.

    Plans run in order, as on real stages, but only when their result is due: a slot that is freed
    and reused while a plan is in flight is therefore really overwritten in between, if anything is
    wrong with the order.
    """

    def __init__(self, stage: FakeStage, delay: int = 0) -> None:
        self.stage = stage
        self.delay = delay
        self._pending: deque[StepPlan] = deque()
        self._waited = 0

    def submit(self, plan: StepPlan) -> None:
        """Queue a plan."""
        self._pending.append(plan)

    def poll(self, timeout_s: float) -> StepResult | None:
        """The oldest plan's result, once it has been asked for often enough."""
        if not self._pending:
            return None
        if self._waited < self.delay and timeout_s == 0:
            self._waited += 1
            return None
        self._waited = 0
        return self.stage.execute(self._pending.popleft())

    def fileno(self) -> int:
        """Nothing to wait for."""
        return -1
