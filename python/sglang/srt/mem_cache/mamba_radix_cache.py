"""Radix tree for hybrid models: KV on every edge, a recurrent state at some of the nodes.

A prefix is reusable as far as both exist, so a match ends at the deepest node that has a state.
Requests copy the state they start from and never write to the tree's (copy on write). KV and
states have separate LRU orders, since either pool may run out first.
"""

from __future__ import annotations

import numpy as np

from sglang.srt.mem_cache.allocator import IntArray, OwnerTable, TokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import CacheUsage, MatchResult, TreeNode
from sglang.srt.mem_cache.memory_pool import MambaPool
from sglang.srt.mem_cache.radix_cache import LruHeap, RadixCache


class MambaRadixCache(RadixCache):
    """`RadixCache` whose nodes may hold a Mamba slot."""

    def __init__(
        self, kv: TokenToKVPoolAllocator, mamba_pool: MambaPool, owners: OwnerTable
    ) -> None:
        super().__init__(kv, owners)
        self._mamba = mamba_pool
        self._num_states = 0
        self._locked_states = 0
        self._state_lru = LruHeap(lambda n: n.state_time, _has_free_state)
        self._num_evicted_states = 0

    def match_prefix(self, token_ids: IntArray) -> MatchResult:
        """Longest prefix whose KV is cached and whose end has a state."""
        path, in_edge = self._walk(token_ids)
        kv_match_len = path[-1].end + in_edge
        self._touch(path)
        while len(path) > 1 and path[-1].state_slot is None:
            path.pop()
        node = path[-1]
        if node.state_slot is not None:
            node.state_time = self._clock
            self._state_lru.push(node)
        return MatchResult(self._slots_of(path), node, node.state_slot, kv_match_len)

    def attach_state(self, node: TreeNode, slot: int, owner: int) -> bool:
        """See the contract: the owner gives the slot away in any case."""
        slots = np.asarray([slot], dtype=np.int32)
        self._clock += 1
        node.state_time = self._clock
        if node.state_slot is not None:
            self._mamba.free(slots, owner)
            self._state_lru.push(node)
            return False
        self._mamba.slots.reown(slots, owner, node.owner)
        node.state_slot = slot
        self._num_states += 1
        self._state_lru.push(node)
        self._state_lru.compact(self._num_states)
        return True

    def lock_state(self, node: TreeNode, step: int) -> None:
        """Keep the state while it is about to be copied (step 1), or let it go again (-1)."""
        if node.state_slot is None:
            return
        self._locked_states += int(node.state_lock + step > 0) - int(node.state_lock > 0)
        node.state_lock += step
        assert node.state_lock >= 0, f"state of tree node {node.id} unlocked too often"
        self._state_lru.push(node)
        self._kv_lru.push(node)  # a held state also kept its KV out of the order of eviction

    def evict_states(self, num_states: int) -> int:
        """Free the least recently used states.

        A node inside the tree keeps its KV. A leaf without a state serves nobody, so an unlocked
        one goes as a whole, and with it those of its ancestors that only led to it.
        """
        freed = 0
        while freed < num_states:
            node = self._state_lru.pop()
            if node is None:
                break
            self._free_state(node)
            freed += 1
            self._prune(node)
        self._num_evicted_states += freed
        return freed

    def usage(self) -> CacheUsage:
        """Sizes and counters."""
        usage = super().usage()
        usage.evictable_states = self._num_states - self._locked_states
        usage.protected_states = self._locked_states
        usage.counters["evicted_states"] = self._num_evicted_states
        return usage

    def _prune(self, node: TreeNode) -> None:
        while self._is_evictable_leaf(node) and node.state_slot is None:
            parent = node.parent
            assert parent is not None
            self._remove_leaf(node)
            node = parent

    def _remove_leaf(self, node: TreeNode) -> None:
        if node.state_slot is not None:
            self._free_state(node)
        super()._remove_leaf(node)

    def _free_state(self, node: TreeNode) -> None:
        assert node.state_slot is not None and node.state_lock == 0
        self._mamba.free(np.asarray([node.state_slot], dtype=np.int32), node.owner)
        node.state_slot = None
        self._num_states -= 1


def _has_free_state(node: TreeNode) -> bool:
    return node.parent is not None and node.state_slot is not None and node.state_lock == 0
