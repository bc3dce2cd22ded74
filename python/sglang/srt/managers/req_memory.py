"""How a request takes slots, and how its KV and states move to the prefix cache.

Everything here happens on stage 0 when a plan is made. Giving back is `req_release.py` alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from sglang.srt.managers.schedule_batch import Req
from sglang.srt.managers.schedule_policy import Room, fits
from sglang.srt.managers.step_plan import pack_ints
from sglang.srt.mem_cache.allocator import IntArray, OwnerTable, TokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import BasePrefixCache, MatchResult, TreeNode
from sglang.srt.mem_cache.memory_pool import HybridReqToTokenPool, MambaPool, ReqToTokenPool


@dataclass
class AdmissionCounters:
    """How often the cache helped, and how often it had to do without a checkpoint."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    skipped_checkpoints: int = 0


@dataclass
class ReqMemory:
    """The pools of stage 0 and the cache over them, as requests use them.

    `table_updates` collects page-table rewrites for the next plan; they reach every stage before
    any later plan can reuse the slots that they replace.
    """

    owners: OwnerTable
    req_to_token_pool: ReqToTokenPool
    token_to_kv_pool_allocator: TokenToKVPoolAllocator
    tree_cache: BasePrefixCache
    mamba_pool: MambaPool | None
    grid: int
    track_interval: int
    counters: AdmissionCounters = field(default_factory=AdmissionCounters)
    table_updates: list[tuple[int, int, bytes]] = field(default_factory=list)

    @property
    def page_size(self) -> int:
        """Tokens a KV page."""
        return self.token_to_kv_pool_allocator.page_size

    def reclaimable_tokens(self) -> int:
        """KV tokens that are free or that eviction would free."""
        free = self.token_to_kv_pool_allocator.available_size()
        return free + self.tree_cache.usage().evictable_tokens

    def cached_prefix_len(self, req: Req) -> int:
        """Tokens of a waiting request that a match would reuse now."""
        return self.tree_cache.match_prefix(self._matchable(req)).prefix_len

    def try_admit(self, req: Req, promised: int, reserve: int, alone: bool) -> AdmitResult | None:
        """Request slot, Mamba slot(s), lock and page table of the cached prefix: all, or nothing.

        None, and nothing changed, when something does not fit. `promised` and `reserve` are KV
        tokens that others count on (see `schedule_policy.Room`).
        """
        match = self.tree_cache.match_prefix(self._matchable(req))
        admitted = self._start_from(match, req, Room(0, promised, reserve), alone)
        if admitted is None and alone and match.state_slot is not None:
            # The cached state may sit in the very slot that the request lacks, and nobody else
            # will ever give one back: it starts from nothing, and the state may be evicted.
            match = self.tree_cache.match_prefix(req.tokens[:0])
            admitted = self._start_from(match, req, Room(0, promised, reserve), alone)
        return admitted

    def _start_from(
        self, match: MatchResult, req: Req, others: Room, alone: bool
    ) -> AdmitResult | None:
        self.tree_cache.inc_lock_ref(match.node)
        self.tree_cache.lock_state(match.node, 1)
        need = self._page_up(req.num_tokens - match.prefix_len)
        room = replace(others, available=self.reclaimable_tokens())
        admitted = fits(need, room, alone) and self._alloc_slots(req)
        self.tree_cache.lock_state(match.node, -1)
        if not admitted:
            self.tree_cache.dec_lock_ref(match.node)
            return None
        assert req.req_pool_idx is not None
        req.last_node = match.node
        req.protected_len = req.kv_len = req.num_computed = match.prefix_len
        req.branch_len = match.kv_match_len
        self._write_row(req, 0, match.kv_indices)
        return AdmitResult(match.prefix_len, match.state_slot)

    def extend(self, req: Req, end: int) -> IntArray | None:
        """KV slots for tokens [kv_len, end) of a request; evicts. None when there is no room."""
        alloc = self.token_to_kv_pool_allocator
        count = end - req.kv_len
        self._make_room(alloc.pages_needed(req.kv_len, count) * self.page_size)
        row = self.req_to_token_pool.rows[req.req_pool_idx]
        last = int(row[req.kv_len - 1]) if req.kv_len else 0
        slots = alloc.alloc_extend(req.kv_len, last, count, req.owner)
        if slots is None:
            return None
        row[req.kv_len : end] = slots
        req.kv_len = end
        return slots

    def extend_decode(self, reqs: list[Req]) -> IntArray | None:
        """One KV slot for each request's next token; evicts. None, nothing changed, on shortage."""
        seq_lens = np.asarray([req.kv_len for req in reqs], dtype=np.int32)
        indices = np.asarray([req.req_pool_idx for req in reqs], dtype=np.int32)
        owners = np.asarray([req.owner for req in reqs], dtype=np.int64)
        rows = self.req_to_token_pool.rows
        self._make_room(int((seq_lens % self.page_size == 0).sum()) * self.page_size)
        slots = self.token_to_kv_pool_allocator.alloc_decode(
            seq_lens, rows[indices, seq_lens - 1], owners
        )
        if slots is None:
            return None
        rows[indices, seq_lens] = slots
        for req in reqs:
            req.kv_len += 1
        return slots

    def acquire_track_slot(self, req: Req) -> int | None:
        """A Mamba slot that will receive a checkpoint of `req`, or None when it must do without.

        The slot reserved by `extra_buffer` goes first; further ones come from the free list or
        from the oldest cached state. Optional caching never stops a request.
        """
        if self.mamba_pool is None or not self.tree_cache.enabled:
            return None
        if req.mamba_track_idx is not None:
            slot, req.mamba_track_idx = req.mamba_track_idx, None
            return slot
        slots = self._alloc_mamba(1, req.owner)
        if slots is None:
            self.counters.skipped_checkpoints += 1
            return None
        return int(slots[0])

    def cache_up_to(self, req: Req, position: int) -> None:
        """Hand the KV of the first `position` tokens, and states tracked so far, to the cache.

        The request keeps reading them under a lock. `position` is page aligned; called when the
        plan that computes these tokens has been issued.
        """
        if not self.tree_cache.enabled:
            return
        for entry in sorted(e for e in req.tracked if e[0] <= position):
            req.tracked.remove(entry)
            self._insert(req, entry[0])
            self._attach(req, entry[1])
        if position > req.protected_len:
            self._insert(req, position)
        self._refill_track_slot(req)

    def cache_finished(self, req: Req) -> None:
        """Leave all that a departing request has computed to the cache, its own state included.

        Called by `release_req` only. The working state is handed over without a copy where the
        sequence ends on a page boundary; further than a page boundary nothing is kept.
        """
        position = req.num_computed // self.page_size * self.page_size
        self.cache_up_to(req, position)
        if not self.tree_cache.enabled or position != req.num_computed or position == 0:
            return
        if self.mamba_pool is not None and req.mamba_pool_idx is not None:
            self._attach(req, req.mamba_pool_idx)
            req.mamba_pool_idx = None

    def take_table_updates(self) -> list[tuple[int, int, bytes]]:
        """The page-table rewrites that the next plan must carry."""
        updates, self.table_updates = self.table_updates, []
        return updates

    # -- internals -------------------------------------------------------------------------------

    def _matchable(self, req: Req) -> IntArray:
        """At least one token must be computed, or there is nothing to sample from."""
        limit = req.num_tokens - 1
        if req.logprob_start_len >= 0:
            limit = min(limit, max(0, req.logprob_start_len - 1))
        return req.tokens[:limit]

    def _alloc_slots(self, req: Req) -> bool:
        pool = self.req_to_token_pool
        if isinstance(pool, HybridReqToTokenPool):
            return self._make_room_for_states(pool.states_per_request) and pool.alloc(req)
        return pool.alloc(req)

    def _alloc_mamba(self, count: int, owner: int) -> IntArray | None:
        assert self.mamba_pool is not None
        return self.mamba_pool.alloc(count, owner) if self._make_room_for_states(count) else None

    def _make_room_for_states(self, count: int) -> bool:
        """Evict cached states until `count` slots are free; False, and nothing evicted, if that
        cannot be: a request that only waits costs the cache nothing."""
        assert self.mamba_pool is not None
        short = count - self.mamba_pool.available_size()
        if short > self.tree_cache.usage().evictable_states:
            return False
        if short > 0:
            self.tree_cache.evict_states(short)
        return True

    def _refill_track_slot(self, req: Req) -> None:
        pool = self.req_to_token_pool
        if isinstance(pool, HybridReqToTokenPool) and pool.extra_buffer:
            if req.mamba_pool_idx is not None and req.mamba_track_idx is None and not req.tracked:
                slots = self._alloc_mamba(1, req.owner)
                req.mamba_track_idx = None if slots is None else int(slots[0])

    def _make_room(self, num_tokens: int) -> None:
        short = num_tokens - self.token_to_kv_pool_allocator.available_size()
        if short > 0:
            self.tree_cache.evict(short)

    def _insert(self, req: Req, position: int) -> None:
        assert position > req.protected_len, f"{req.rid}: {position} is cached already"
        row = self.req_to_token_pool.rows[req.req_pool_idx]
        result = self.tree_cache.insert(
            req.tokens[:position], row[:position].copy(), req.protected_len, req.owner
        )
        self._move_lock(req, result.node, position)
        if result.duplicate_end > result.duplicate_start:
            self._write_row(
                req,
                result.duplicate_start,
                result.slots[result.duplicate_start : result.duplicate_end],
            )

    def _attach(self, req: Req, slot: int) -> None:
        assert req.last_node is not None and req.last_node.end == req.protected_len
        self.tree_cache.attach_state(req.last_node, slot, req.owner)

    def _move_lock(self, req: Req, node: TreeNode, position: int) -> None:
        assert req.last_node is not None
        self.tree_cache.inc_lock_ref(node)
        self.tree_cache.dec_lock_ref(req.last_node)
        req.last_node, req.protected_len = node, position

    def _write_row(self, req: Req, start: int, slots: IntArray) -> None:
        if len(slots) == 0:
            return
        assert req.req_pool_idx is not None
        self.req_to_token_pool.rows[req.req_pool_idx, start : start + len(slots)] = slots
        self.table_updates.append((req.req_pool_idx, start, pack_ints(slots)))

    def _page_up(self, num_tokens: int) -> int:
        return -(-num_tokens // self.page_size) * self.page_size


@dataclass(frozen=True)
class AdmitResult:
    """What an admitted request starts from."""

    prefix_len: int
    state_slot: int | None  # to be copied to the request's own slot before its first step
