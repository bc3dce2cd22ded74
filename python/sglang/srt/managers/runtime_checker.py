"""Two leak checks over the pools: counts, and who can reach which slot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sglang.srt.managers.req_memory import ReqMemory
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.mem_cache.allocator import IntArray, SlotAllocator
from sglang.srt.mem_cache.base_prefix_cache import TreeNode

MAX_NAMED = 8  # slots named in a message


class MemoryViolation(RuntimeError):
    """The pools do not add up. What is `leaked` can be put back safely; anything else cannot.

    stale_locks: tree nodes locked more often than by those who use them, and how much more often.
    """

    def __init__(
        self,
        problems: list[str],
        leaked: dict[str, IntArray],
        stale_locks: list[tuple[TreeNode, int]],
        repairable: bool,
    ) -> None:
        super().__init__("; ".join(problems))
        self.leaked = leaked
        self.stale_locks = stale_locks
        self.repairable = repairable


@dataclass
class _Holdings:
    """Slots of one pool by holder; (slots, owner id) pairs."""

    allocator: SlotAllocator
    held: list[tuple[IntArray, int]] = field(default_factory=list)

    def add(self, slots: IntArray | int | None, owner: int) -> None:
        if slots is not None:
            self.held.append((np.atleast_1d(np.asarray(slots, dtype=np.int32)), owner))


def check_memory(memory: ReqMemory, live: Iterable[Req], locked_states: int = 0) -> None:
    """Raise MemoryViolation unless every slot is held once, by whom the pools say, or free.

    `live` are all requests that hold slots. Counts: available + evictable + protected + held ==
    total, per pool. Reachability: every slot is in the free list, or in exactly one page table
    beyond its cached part, or in exactly one tree node; every page table's cached part is the
    tree's, and the tree is locked by live requests only. Slots that nobody reaches are leaked (and
    can be put back, as locks can be let go); a slot reached twice, or reached while free, cannot
    be repaired. `locked_states`: states that a plan in the making copies from, 0 outside of one.
    """
    live = list(live)
    pools = _holdings(memory, live)
    problems: list[str] = []
    leaked: dict[str, IntArray] = {}
    repairable = True
    for name, pool in pools.items():
        lost, fatal = _check_pool(pool, problems)
        if len(lost):
            leaked[name] = lost
        repairable = repairable and not fatal
    if not problems:
        _check_counts(memory, live, problems)
    for req in live:
        repairable = _check_table(memory, req, problems) and repairable
    stale, fatal = _check_locks(memory, live, problems)
    if memory.tree_cache.usage().protected_states != locked_states:
        fatal = True
        problems.append(f"{memory.tree_cache.usage().protected_states} cached states are locked")
    if problems:
        raise MemoryViolation(problems, leaked, stale, repairable and not fatal)


def repair(memory: ReqMemory, violation: MemoryViolation) -> int:
    """Put leaked slots back and let stale locks go; returns how many.

    Call it only when `violation.repairable`.
    """
    allocators = _allocators(memory)
    for name, slots in violation.leaked.items():
        allocators[name].reclaim(slots)
    for node, count in violation.stale_locks:
        for _ in range(count):
            memory.tree_cache.dec_lock_ref(node)
    leaked = sum(len(slots) for slots in violation.leaked.values())
    return leaked + sum(count for _, count in violation.stale_locks)


def _allocators(memory: ReqMemory) -> dict[str, SlotAllocator]:
    pools = {
        "req": memory.req_to_token_pool.req_slots,
        "kv": memory.token_to_kv_pool_allocator.pages,
    }
    if memory.mamba_pool is not None:
        pools["mamba"] = memory.mamba_pool.slots
    return pools


def _holdings(memory: ReqMemory, live: list[Req]) -> dict[str, _Holdings]:
    pools = {name: _Holdings(allocator) for name, allocator in _allocators(memory).items()}
    pages_of = memory.token_to_kv_pool_allocator.pages_of
    for node in memory.tree_cache.nodes():
        pools["kv"].add(pages_of(node.value), node.owner)
        if "mamba" in pools:
            pools["mamba"].add(node.state_slot, node.owner)
    for req in live:
        if req.req_pool_idx is None:
            continue
        row = memory.req_to_token_pool.rows[req.req_pool_idx]
        pools["req"].add(req.req_pool_idx, req.owner)
        pools["kv"].add(pages_of(row[req.protected_len : req.kv_len]), req.owner)
        if "mamba" in pools:
            for slot in (req.mamba_pool_idx, req.mamba_track_idx, *(s for _, s in req.tracked)):
                pools["mamba"].add(slot, req.owner)
    return pools


def _check_pool(pool: _Holdings, problems: list[str]) -> tuple[IntArray, bool]:
    """Leaked slots of a pool, and whether something is wrong that cannot be repaired."""
    allocator = pool.allocator
    reached = np.zeros(allocator.first + allocator.size, dtype=np.int32)
    fatal = False
    for slots, owner in pool.held:
        np.add.at(reached, slots, 1)
        wrong = allocator.not_held_by(slots, owner)
        if len(wrong):
            fatal = True
            what = f"used by {allocator.owners.label(owner)}, who does not hold them"
            problems.append(_name_slots(allocator, wrong, what))
    free = allocator.free_slots()
    in_free_list = np.bincount(free, minlength=len(reached))
    for slots, what in (
        (_where(reached > 1), "used more than once"),
        (_where((reached > 0) & (in_free_list > 0)), "used and free"),
        (_where(in_free_list > 1), "twice in the free list"),
    ):
        if len(slots):
            fatal = True
            problems.append(_name_slots(allocator, slots, what))
    lost = _where((reached + in_free_list)[allocator.first :] == 0) + np.int32(allocator.first)
    if len(lost):
        problems.append(_name_slots(allocator, lost, "leaked: reached by nobody"))
    return lost, fatal


def _where(condition: npt.NDArray[np.bool_]) -> IntArray:
    return np.flatnonzero(condition).astype(np.int32)


def _name_slots(allocator: SlotAllocator, slots: IntArray, what: str) -> str:
    named = ", ".join(allocator.describe(int(slot)) for slot in slots[:MAX_NAMED])
    more = f" and {len(slots) - MAX_NAMED} more" if len(slots) > MAX_NAMED else ""
    return f"{len(slots)} slot(s) {what}: {named}{more}"


def _check_counts(memory: ReqMemory, live: list[Req], problems: list[str]) -> None:
    for name, pool in pool_counts(memory, live).items():
        parts = pool["available"] + pool["evictable"] + pool["protected"] + pool["held"]
        if parts != pool["total"]:
            problems.append(f"{name} counts do not add up: {pool}")


def pool_counts(memory: ReqMemory, live: Iterable[Req]) -> dict[str, dict[str, int]]:
    """Sizes per pool: available, evictable and protected (both the cache's), held, total.

    KV is counted in tokens of whole pages.
    """
    live = [req for req in live if req.req_pool_idx is not None]
    usage = memory.tree_cache.usage()
    alloc = memory.token_to_kv_pool_allocator
    page = memory.page_size
    pools = {
        "kv": {
            "available": alloc.available_size(),
            "evictable": usage.evictable_tokens,
            "protected": usage.protected_tokens,
            "held": sum(-(-(req.kv_len - req.protected_len) // page) * page for req in live),
            "total": alloc.size,
        },
        "req": {
            "available": memory.req_to_token_pool.available_size(),
            "evictable": 0,
            "protected": 0,
            "held": len(live),
            "total": memory.req_to_token_pool.size,
        },
    }
    if memory.mamba_pool is not None:
        pools["mamba"] = {
            "available": memory.mamba_pool.available_size(),
            "evictable": usage.evictable_states,
            "protected": usage.protected_states,
            "held": sum(
                sum(slot is not None for slot in (req.mamba_pool_idx, req.mamba_track_idx))
                + len(req.tracked)
                for req in live
            ),
            "total": memory.mamba_pool.size,
        }
    return pools


def _check_table(memory: ReqMemory, req: Req, problems: list[str]) -> bool:
    """The cached part of a page table must be the tree's copy, slot for slot."""
    if req.req_pool_idx is None or req.last_node is None or not memory.tree_cache.enabled:
        return True
    path: list[TreeNode] = []
    node: TreeNode | None = req.last_node
    while node is not None and node.parent is not None:
        path.append(node)
        node = node.parent
    row = memory.req_to_token_pool.rows[req.req_pool_idx, : req.protected_len]
    cached = np.concatenate([n.value for n in reversed(path)]) if path else row[:0]
    if len(cached) == len(row) and bool(np.all(cached == row)):
        return True
    problems.append(f"page table of request {req.rid} does not match the cache it has locked")
    return False


def _check_locks(
    memory: ReqMemory, live: list[Req], problems: list[str]
) -> tuple[list[tuple[TreeNode, int]], bool]:
    """Locks that no live request accounts for, and whether one is missing.

    A lock counts on every node up to the root, so a node's own locks are those that its children
    do not explain.
    """
    wanted = Counter(req.last_node.id for req in live if req.last_node is not None)
    stale: list[tuple[TreeNode, int]] = []
    missing = False
    for node in memory.tree_cache.nodes():
        own = node.lock_ref - sum(child.lock_ref for child in node.children.values())
        if own == wanted[node.id]:
            continue
        problems.append(f"tree node {node.id} has {own} locks, {wanted[node.id]} requests use it")
        missing = missing or own < wanted[node.id]
        stale.append((node, own - wanted[node.id]))
    return stale, missing
