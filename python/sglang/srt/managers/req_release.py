"""The one way by which slots come back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from sglang.srt.managers.req_memory import ReqMemory
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.mem_cache.memory_pool import HybridReqToTokenPool


def release_req(memory: ReqMemory, req: Req, *, keep_in_cache: bool = True) -> None:
    """Give back all that a request holds: cached prefix lock, KV slots, Mamba slots, request slot.

    Finish, stop, abort, disconnect, time-out, retraction and borrowed requests all come here, at
    any moment: steps in flight may still read and write these slots, and every later owner's
    steps run after them. Calling it for a request that holds nothing does nothing.
    With `keep_in_cache` what was computed goes to the prefix cache first.
    """
    if req.req_pool_idx is None:
        return
    if keep_in_cache:
        memory.cache_finished(req)
    _free_tracked(memory, req)
    row = memory.req_to_token_pool.rows[req.req_pool_idx]
    memory.token_to_kv_pool_allocator.free(row[req.protected_len : req.kv_len].copy(), req.owner)
    if isinstance(memory.req_to_token_pool, HybridReqToTokenPool):
        _free_states(memory.req_to_token_pool, req)
    memory.req_to_token_pool.free(req)
    if req.last_node is not None:
        memory.tree_cache.dec_lock_ref(req.last_node)
    req.last_node = None
    req.protected_len = req.kv_len = req.num_computed = req.branch_len = 0
    req.token_in_flight = False
    req.sampling_sent = False


@contextmanager
def borrowed_req(memory: ReqMemory, req: Req) -> Iterator[Req]:
    """A temporary request (warm-up, calibration) whose slots come back whatever happens."""
    try:
        yield req
    finally:
        release_req(memory, req, keep_in_cache=False)


def _free_tracked(memory: ReqMemory, req: Req) -> None:
    for _, slot in req.tracked:
        assert memory.mamba_pool is not None
        memory.mamba_pool.free(np.asarray([slot], dtype=np.int32), req.owner)
    req.tracked.clear()


def _free_states(pool: HybridReqToTokenPool, req: Req) -> None:
    if req.mamba_pool_idx is not None:
        pool.free_mamba_cache(req)
    elif req.mamba_track_idx is not None:  # the working state went to the cache
        pool.mamba_pool.free(np.asarray([req.mamba_track_idx], dtype=np.int32), req.owner)
        req.mamba_track_idx = None
