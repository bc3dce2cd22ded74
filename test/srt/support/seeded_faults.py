"""Faults put into the memory code on purpose. A test shows that each is noticed.

Every fault is a context manager that replaces one function and puts it back. They are the faults
that people have met in the field, so a check that misses one is not worth its time.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np

from sglang.srt.managers import req_release, scheduler_pp_mixin
from sglang.srt.managers.batch_planner import BatchPlanner
from sglang.srt.managers.req_memory import ReqMemory
from sglang.srt.managers.scheduler_pp_mixin import SchedulerPPMixin
from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator
from sglang.srt.mem_cache.mamba_radix_cache import MambaRadixCache
from sglang.srt.mem_cache.radix_cache import RadixCache

from .fake_runner import FakeStage

Fault = Callable[[], AbstractContextManager[None]]


@contextmanager
def replaced(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """`owner.name` is `make(original)` inside the block."""
    original = owner.__dict__[name]
    setattr(owner, name, make(original))
    try:
        yield
    finally:
        setattr(owner, name, original)


@contextmanager
def skip_mamba_free_in_release() -> Iterator[None]:
    """A departing request forgets its Mamba slots."""

    def make(original):
        def forget(pool, req):
            req.mamba_pool_idx = req.mamba_track_idx = None

        return forget

    with replaced(req_release, "_free_states", make):
        yield


@contextmanager
def skip_mamba_free_in_profiling() -> Iterator[None]:
    """`_profile_request` without the lines that give the Mamba slot back."""
    guard = "if req.mamba_pool_idx is not None:"
    call = "self.req_to_token_pool.free_mamba_cache(req)"

    def make(original):
        source = textwrap.dedent(inspect.getsource(original))
        kept = [line for line in source.splitlines() if line.strip() not in (guard, call)]
        assert len(kept) == len(source.splitlines()) - 2, "the clean-up lines are not as expected"
        found: dict[str, Any] = {}
        code = "from __future__ import annotations\n" + "\n".join(kept)
        exec(code, vars(scheduler_pp_mixin), found)
        return found["_profile_request"]

    with replaced(SchedulerPPMixin, "_profile_request", make):
        yield


@contextmanager
def skip_unlock() -> Iterator[None]:
    """A departing request leaves its prefix locked."""
    with replaced(RadixCache, "dec_lock_ref", lambda _: lambda self, node: None):
        yield


@contextmanager
def keep_lock_of_refused_admission() -> Iterator[None]:
    """A request that does not fit keeps the lock that its prefix match took."""

    def make(original):
        def try_admit(self, req, *args, **kwargs):
            admitted = original(self, req, *args, **kwargs)
            if admitted is None:
                match = self.tree_cache.match_prefix(self._matchable(req))
                self.tree_cache.inc_lock_ref(match.node)
            return admitted

        return try_admit

    with replaced(ReqMemory, "try_admit", make):
        yield


@contextmanager
def free_twice() -> Iterator[None]:
    """KV slots are given back twice."""

    def make(original):
        def free(self, slots, owner):
            original(self, slots, owner)
            original(self, slots, owner)

        return free

    with replaced(TokenToKVPoolAllocator, "free", make):
        yield


@contextmanager
def stale_page_table_on_stages() -> Iterator[None]:
    """KV moved to the cache's copy, and the stages are not told."""

    def make(original):
        def insert(self, req, position):
            updates = list(self.table_updates)
            original(self, req, position)
            self.table_updates = updates

        return insert

    with replaced(ReqMemory, "_insert", make):
        yield


@contextmanager
def stale_page_table_on_host() -> Iterator[None]:
    """KV moved to the cache's copy, and the page table still names the freed duplicate."""

    def make(original):
        def insert(self, req, position):
            row = self.req_to_token_pool.rows[req.req_pool_idx]
            before, updates = row.copy(), list(self.table_updates)
            original(self, req, position)
            row[:] = before
            self.table_updates = updates

        return insert

    with replaced(ReqMemory, "_insert", make):
        yield


@contextmanager
def free_one_page_less() -> Iterator[None]:
    """The last page of what is freed is forgotten."""

    def make(original):
        def free(self, slots, owner):
            self.pages.free(self.pages_of(slots)[:-1], owner)

        return free

    with replaced(TokenToKVPoolAllocator, "free", make):
        yield


@contextmanager
def write_one_page_off() -> Iterator[None]:
    """New tokens go to the page after the one that was allocated."""

    def make(original):
        def alloc_extend(self, seq_len, last_slot, count, owner):
            slots = original(self, seq_len, last_slot, count, owner)
            if slots is None or len(slots) == 0 or self.pages_needed(seq_len, count) == 0:
                return slots
            own = -seq_len % self.page_size
            slots[own:] = (slots[own:] + self.page_size) % (self.size + self.page_size)
            return slots

        return alloc_extend

    with replaced(TokenToKVPoolAllocator, "alloc_extend", make):
        yield


@contextmanager
def state_one_token_late() -> Iterator[None]:
    """A checkpoint is taken after one token more than its node says."""

    def make(original):
        def track(self, plan, row, position, state):
            end = plan.prefix_lens[row] + plan.extend_lens[row]
            for tracked_row, tracked_position, slot in plan.track_states:
                if tracked_row == row and min(tracked_position + 1, end) == position:
                    self.state[slot] = state

        return track

    with replaced(FakeStage, "_track", make):
        yield


@contextmanager
def skip_state_lock() -> Iterator[None]:
    """While a plan is made, a state that it copies from may be evicted and given away."""
    with replaced(MambaRadixCache, "lock_state", lambda _: lambda self, node, step: None):
        yield


def _without(field: str) -> Callable[[Any], Any]:
    def make(original):
        def admit(self, draft, req):
            admitted = original(self, draft, req)
            getattr(draft, field).clear()
            return admitted

        return admit

    return make


@contextmanager
def skip_zeroing() -> Iterator[None]:
    """A fresh request sees what its Mamba slot held before."""
    with replaced(BatchPlanner, "_admit", _without("zero_states")):
        yield


@contextmanager
def skip_restore() -> Iterator[None]:
    """A prefix hit does not copy the cached state."""
    with replaced(BatchPlanner, "_admit", _without("copy_states")):
        yield


@contextmanager
def share_state_without_copy() -> Iterator[None]:
    """No copy on write: a checkpoint is the request's working slot itself."""

    def make(original):
        def acquire(self, req):
            slot = original(self, req)
            if slot is not None and req.mamba_pool_idx is not None:
                self.mamba_pool.free(np.asarray([slot], dtype=np.int32), req.owner)
                return req.mamba_pool_idx
            return slot

        return acquire

    with replaced(ReqMemory, "acquire_track_slot", make):
        yield


@contextmanager
def evict_what_is_locked() -> Iterator[None]:
    """Eviction does not ask whether a running request reads the KV."""

    def make(original):
        return lambda self, node: node.parent is not None and not node.children

    with replaced(RadixCache, "_is_evictable_leaf", make):
        yield


@contextmanager
def retraction_drops_state() -> Iterator[None]:
    """A retracted request comes back with its KV, and a recurrent state of zeros."""

    def make(original):
        def admit(self, draft, req):
            admitted = original(self, draft, req)
            if admitted and req.num_retractions and req.mamba_pool_idx is not None:
                slot = req.mamba_pool_idx
                draft.copy_states = [pair for pair in draft.copy_states if pair[1] != slot]
                draft.zero_states.append(slot)
            return admitted

        return admit

    with replaced(BatchPlanner, "_admit", make):
        yield


SCHEDULER_FAULTS: list[Fault] = [
    skip_mamba_free_in_release,
    skip_unlock,
    keep_lock_of_refused_admission,
    free_twice,
    stale_page_table_on_stages,
    stale_page_table_on_host,
    free_one_page_less,
    write_one_page_off,
    state_one_token_late,
    skip_state_lock,
    skip_zeroing,
    skip_restore,
    share_state_without_copy,
    evict_what_is_locked,
    retraction_drops_state,
]
