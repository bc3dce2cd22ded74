"""Builds the next micro-batch: decode rows, prompt chunks, admissions, retractions."""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from sglang.srt.managers import schedule_policy as policy
from sglang.srt.managers.req_memory import ReqMemory
from sglang.srt.managers.req_release import release_req
from sglang.srt.managers.row_sampling import sampling_of
from sglang.srt.managers.schedule_batch import BatchRow, PlanDraft, Req, ReqStatus, ScheduleBatch
from sglang.srt.managers.step_plan import StepPlan, pack_ints
from sglang.srt.mem_cache.allocator import IntArray


class ChunkBudget(Protocol):
    """How many prompt tokens the next row of a prefill micro-batch may have."""

    def start_batch(self) -> None:
        """A new micro-batch begins."""

    def next_len(self, prefix_len: int) -> int:
        """Tokens left for a row that starts after `prefix_len` tokens."""

    def join_tail(self, num_tokens: int) -> int:
        """Rest of a prompt that is taken along with a chunk of `num_tokens` before it."""

    def take(self, prefix_len: int, num_tokens: int) -> None:
        """A row of `num_tokens` tokens after `prefix_len` was added."""


@dataclass(frozen=True)
class PlannerLimits:
    """Numbers that bound a micro-batch."""

    pp_size: int
    max_running: int
    max_micro_batch: int | None
    mixed_chunk: bool
    schedule_policy: str


@dataclass
class BatchPlanner:
    """Owns the waiting queue and the running list, and turns them into plans.

    `running` holds admitted requests in order of arrival; batches are built in that order, so
    that the same requests always give the same plans.
    """

    memory: ReqMemory
    limits: PlannerLimits
    budget: ChunkBudget
    waiting: list[Req] = field(default_factory=list)
    running: list[Req] = field(default_factory=list)
    num_retracted: int = 0
    _seq: int = 0
    _last_was_prefill: bool = False

    def add(self, req: Req) -> None:
        """Queue a request; the queue is in order of arrival (a retracted one comes first again)."""
        insort(self.waiting, req, key=lambda r: r.arrival)

    def remove(self, req: Req) -> None:
        """Take a request out of whichever list it is in."""
        for queue in (self.waiting, self.running):
            if req in queue:
                queue.remove(req)

    def next_batch(self, mb_slot: int) -> ScheduleBatch | None:
        """The next micro-batch, or None when nothing can run now.

        Prompts and decoding take turns, so that neither starves the other; with mixed chunks each
        micro-batch serves the decode rows first and prompts with what is left of the budget.
        """
        draft = PlanDraft()
        try:
            self._fill(draft)
            return self._issue(draft, mb_slot) if draft.rows else None
        finally:
            for node in draft.locked_states:
                self.memory.tree_cache.lock_state(node, -1)

    def next_seq(self) -> int:
        """Number of the next plan; plans made outside (profiling) take theirs here too."""
        self._seq += 1
        return self._seq

    def _fill(self, draft: PlanDraft) -> None:
        if self.limits.mixed_chunk:
            self._add_decode_rows(draft)
            self._add_prefill_rows(draft)
        elif self._last_was_prefill:
            self._add_decode_rows(draft)
            if not draft.rows:
                self._add_prefill_rows(draft)
        else:
            self._add_prefill_rows(draft)
            if not draft.rows:
                self._add_decode_rows(draft)
        self._last_was_prefill = len(draft.rows) > draft.num_decode_rows

    # -- decode ----------------------------------------------------------------------------------

    def _add_decode_rows(self, draft: PlanDraft) -> None:
        decoding = sum(req.status is ReqStatus.DECODING for req in self.running)
        quota = policy.decode_quota(decoding, self.limits.pp_size, self.limits.max_micro_batch)
        ready = [req for req in self.running if req.can_decode][:quota]
        slots = self.memory.extend_decode(ready) if ready else None
        while ready and slots is None:
            self._retract_youngest()
            ready = [req for req in ready if req.can_decode]
            slots = self.memory.extend_decode(ready) if ready else None
        if slots is None:
            return
        for i, req in enumerate(ready):
            row = BatchRow(req, req.num_tokens - 1, req.num_tokens, True, req.num_retractions)
            draft.rows.append(row)
            draft.slots.append(slots[i : i + 1])
            self._track_decode(draft, row)
        draft.num_decode_rows = len(ready)

    def _track_decode(self, draft: PlanDraft, row: BatchRow) -> None:
        """Save the state of a reply as it grows, where its end may not be cacheable by itself."""
        memory = self.memory
        if memory.mamba_pool is None or row.end % memory.grid or not memory.tree_cache.enabled:
            return
        if memory.page_size == 1 and row.req.mamba_track_idx is None and not row.req.tracked:
            return  # no_buffer with pages of one token: the end of the reply is cached as it is
        slot = row.req.tracked.pop()[1] if row.req.tracked else memory.acquire_track_slot(row.req)
        if slot is not None:
            row.req.tracked.append((row.end, slot))
            draft.track_states.append((len(draft.rows) - 1, row.end, slot))

    def _retract_youngest(self) -> None:
        """Queue the youngest running request again; it goes on later as if it never left."""
        victim = self.running[policy.youngest([req.arrival for req in self.running])]
        self.retract(victim)

    def retract(self, req: Req) -> None:
        """Take all slots of a running request and queue it again."""
        self.running.remove(req)
        release_req(self.memory, req)
        req.num_retractions += 1
        self.num_retracted += 1
        req.to(ReqStatus.WAITING)
        self.add(req)

    # -- prefill ---------------------------------------------------------------------------------

    def _add_prefill_rows(self, draft: PlanDraft) -> None:
        self.budget.start_batch()
        for row in draft.rows:
            self.budget.take(row.start, 1)
        in_batch = len(draft.rows)
        for req in [r for r in self.running if r.status is ReqStatus.PREFILLING]:
            if not self._may_add(len(draft.rows) - in_batch):
                return
            if req.status is ReqStatus.PREFILLING and not self._add_chunk(draft, req):
                return
        for req in self._waiting_in_order():
            if not self._may_add(len(draft.rows) - in_batch):
                return
            if self._budget_left(draft, 0) <= 0 or not self._admit(draft, req):
                return
            if not self._add_chunk(draft, req):
                return

    def _may_add(self, num_rows: int) -> bool:
        limit = self.limits.max_micro_batch
        return limit is None or num_rows < limit

    def _budget_left(self, draft: PlanDraft, prefix_len: int) -> int:
        """Tokens for the next prompt row; the first one of a micro-batch always gets a grid step.

        Else decode rows could use up a small budget again and again, and no prompt would go on.
        """
        left = self.budget.next_len(prefix_len)
        is_first = len(draft.rows) == draft.num_decode_rows
        return max(left, self.memory.grid) if is_first else left

    def _waiting_in_order(self) -> list[Req]:
        if self.limits.schedule_policy == "fcfs" or len(self.waiting) < 2:
            return list(self.waiting)
        lens = [self.memory.cached_prefix_len(req) for req in self.waiting]
        order = policy.waiting_order("lpm", [req.arrival for req in self.waiting], lens)
        return [self.waiting[i] for i in order]

    def _admit(self, draft: PlanDraft, req: Req) -> bool:
        if len(self.running) >= self.limits.max_running:
            return False
        promised = sum(
            r.num_tokens - r.kv_len for r in self.running if r.status is ReqStatus.PREFILLING
        )
        growth = [r.remaining_new_tokens for r in (*self.running, req)]
        reserve = policy.growth_reserve(growth, retracted=req.num_retractions > 0)
        admitted = self.memory.try_admit(req, promised, reserve, alone=not self.running)
        if admitted is None:
            return False
        assert req.req_pool_idx is not None
        if req.mamba_pool_idx is not None:
            if admitted.state_slot is None:
                draft.zero_states.append(req.mamba_pool_idx)
            else:
                draft.copy_states.append((admitted.state_slot, req.mamba_pool_idx))
                # Until the plan is out no other row of it may be given the slot to copy from.
                assert req.last_node is not None
                self.memory.tree_cache.lock_state(req.last_node, 1)
                draft.locked_states.append(req.last_node)
        if req.num_retractions == 0:
            req.cached_tokens = admitted.prefix_len
            self.memory.counters.prompt_tokens += req.num_prompt
            self.memory.counters.cached_tokens += admitted.prefix_len
        self.waiting.remove(req)
        insort(self.running, req, key=lambda r: r.arrival)
        req.to(ReqStatus.PREFILLING)
        return True

    def _add_chunk(self, draft: PlanDraft, req: Req) -> bool:
        """Add the next chunk of an admitted prompt; False when the micro-batch takes no more."""
        start = req.num_computed
        length = self._budget_left(draft, start)
        end = policy.chunk_end(
            start, req.num_tokens, length, self.memory.grid, self.budget.join_tail(length)
        )
        if end <= start:
            return False
        slots = self.memory.extend(req, end)
        while slots is None:
            self._retract_for(draft, req)
            if req.status is not ReqStatus.PREFILLING:
                return False
            slots = self.memory.extend(req, end)
        last = end == req.num_tokens
        row = BatchRow(
            req,
            start,
            end,
            samples=last and req.remaining_new_tokens > 0,
            epoch=req.num_retractions,
            input_logprobs=0 <= req.logprob_start_len and start < req.num_prompt,
        )
        draft.rows.append(row)
        draft.slots.append(slots)
        self.budget.take(start, end - start)
        self._track_chunk(draft, row)
        return last

    def _retract_for(self, draft: PlanDraft, req: Req) -> None:
        """Make room for a chunk: the youngest request that is not in this draft gives way."""
        in_draft = {id(row.req) for row in draft.rows}
        others = [r for r in self.running if id(r) not in in_draft]
        victim = others[policy.youngest([r.arrival for r in others])]
        draft.zero_states = [s for s in draft.zero_states if s != victim.mamba_pool_idx]
        draft.copy_states = [c for c in draft.copy_states if c[1] != victim.mamba_pool_idx]
        self.retract(victim)

    def _track_chunk(self, draft: PlanDraft, row: BatchRow) -> None:
        memory, req = self.memory, row.req
        if memory.mamba_pool is None or not memory.tree_cache.enabled:
            return
        for position in policy.track_positions(
            row.start, row.end, req.num_tokens, memory.grid, memory.track_interval, req.branch_len
        ):
            slot = memory.acquire_track_slot(req)
            if slot is not None:
                req.tracked.append((position, slot))
                draft.track_states.append((len(draft.rows) - 1, position, slot))

    # -- issue -----------------------------------------------------------------------------------

    def _issue(self, draft: PlanDraft, mb_slot: int) -> ScheduleBatch:
        """Fix the plan, and count its tokens as computed from here on."""
        rows = draft.rows
        plan = StepPlan(
            seq=self.next_seq(),
            mb_slot=mb_slot,
            num_decode_rows=draft.num_decode_rows,
            req_pool_indices=[_held(row.req.req_pool_idx) for row in rows],
            prefix_lens=[row.start for row in rows],
            extend_lens=[row.end - row.start for row in rows],
            mamba_indices=(
                []
                if self.memory.mamba_pool is None
                else [_held(r.req.mamba_pool_idx) for r in rows]
            ),
            sample_rows=[i for i, row in enumerate(rows) if row.samples],
            input_ids=pack_ints(np.concatenate([r.req.tokens[r.start : r.end] for r in rows])),
            out_cache_loc=pack_ints(_concat(draft.slots)),
            table_updates=self.memory.take_table_updates(),
            zero_states=draft.zero_states,
            copy_states=draft.copy_states,
            track_states=draft.track_states,
            sampling=[
                sampling_of(row.req)
                for row in rows
                if (row.samples or row.input_logprobs) and not row.req.sampling_sent
            ],
            input_logprob_rows=[i for i, row in enumerate(rows) if row.input_logprobs],
            grammar_masks=[
                (i, row.req.grammar.compute_bitmask())
                for i, row in enumerate(rows)
                if row.samples and row.req.grammar is not None
            ],
            next_input_ids=[_next_input(row) for row in rows if row.input_logprobs],
        )
        batch = ScheduleBatch(plan, rows, num_decode_rows=draft.num_decode_rows)
        for row in rows:
            self._advance(row)
        return batch

    def _advance(self, row: BatchRow) -> None:
        req = row.req
        req.num_computed = row.end
        req.token_in_flight = row.end == req.num_tokens
        req.sampling_sent = req.sampling_sent or row.samples or row.input_logprobs
        if req.status is ReqStatus.DECODING:
            return
        self.memory.cache_up_to(req, row.end // self.memory.page_size * self.memory.page_size)
        if row.end == req.num_tokens:
            req.to(ReqStatus.DECODING)


def _held(index: int | None) -> int:
    assert index is not None, "a request in a batch holds its slots"
    return index


def _concat(slots: list[IntArray]) -> IntArray:
    return np.concatenate(slots)


def _next_input(row: BatchRow) -> int:
    """The prompt token after the row, whose logprob the row's last position gives; -1: none."""
    return int(row.req.tokens[row.end]) if row.end < row.req.num_prompt else -1
