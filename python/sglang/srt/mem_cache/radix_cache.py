"""Radix tree over token ids whose edges hold KV slots (models without recurrent layers)."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator

import numpy as np

from sglang.srt.mem_cache.allocator import IntArray, OwnerTable, TokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import (
    NO_SLOTS,
    BasePrefixCache,
    CacheUsage,
    InsertResult,
    MatchResult,
    TreeNode,
)


class LruHeap:
    """Oldest-first queue of tree nodes with lazy deletion.

    A node is pushed whenever its time changes or it becomes a candidate; entries that no longer
    speak the truth are skipped when they surface. Every pop shortens the heap, so a search ends.
    """

    def __init__(self, time_of: Callable[[TreeNode], int], valid: Callable[[TreeNode], bool]):
        self._time_of = time_of
        self._valid = valid
        self._heap: list[tuple[int, int, TreeNode]] = []

    def push(self, node: TreeNode) -> None:
        """Offer a node at its present time, if it is a candidate."""
        if self._valid(node):
            heapq.heappush(self._heap, (self._time_of(node), node.id, node))

    def pop(self) -> TreeNode | None:
        """The oldest candidate, or None."""
        while self._heap:
            time, _, node = heapq.heappop(self._heap)
            if time == self._time_of(node) and self._valid(node):
                return node
        return None

    def compact(self, num_candidates: int) -> None:
        """Drop stale entries once they outnumber the candidates by far."""
        if len(self._heap) > 64 + 4 * num_candidates:
            live = {e[2].id: e for e in self._heap if e[0] == self._time_of(e[2])}
            self._heap = [e for e in live.values() if self._valid(e[2])]
            heapq.heapify(self._heap)


class RadixCache(BasePrefixCache):
    """Prefix cache of KV pages.

    Edges start and end on page boundaries; a child is found by the tokens of its first page.
    """

    def __init__(self, kv: TokenToKVPoolAllocator, owners: OwnerTable) -> None:
        self._kv = kv
        self._owners = owners
        self._page = kv.page_size
        self._clock = 0
        self._next_id = 0
        self._num_nodes = 0
        self._evictable_tokens = 0
        self._protected_tokens = 0
        self._root = self._new_node(None, 0)
        self._kv_lru = LruHeap(lambda n: n.kv_time, self._is_evictable_leaf)
        self._num_evicted_tokens = 0

    @property
    def enabled(self) -> bool:
        """Always."""
        return True

    def match_prefix(self, token_ids: IntArray) -> MatchResult:
        """Longest cached prefix, page aligned; splits an edge that matches in part."""
        path, in_edge = self._walk(token_ids)
        node = path[-1]
        if in_edge:
            child = node.children[self._child_key(token_ids[node.end :])]
            node = self._split(child, in_edge)
            path.append(node)
        self._touch(path)
        return MatchResult(self._slots_of(path), node, None, node.end)

    def insert(
        self, token_ids: IntArray, slots: IntArray, protected_len: int, owner: int
    ) -> InsertResult:
        """See the contract. Ends on a node of its own, splitting an edge if need be."""
        assert len(token_ids) == len(slots) and len(slots) % self._page == 0
        path, in_edge = self._walk(token_ids)
        node = path[-1]
        if in_edge:
            child = node.children[self._child_key(token_ids[node.end :])]
            node = self._split(child, in_edge)
            path.append(node)
        held = node.end
        if held > protected_len:
            self._kv.free(slots[protected_len:held], owner)
        if held < len(token_ids):
            node = self._add_leaf(node, token_ids[held:], slots[held:], owner)
            path.append(node)
        self._touch(path)
        return InsertResult(node, self._slots_of(path), protected_len, max(held, protected_len))

    def attach_state(self, node: TreeNode, slot: int, owner: int) -> bool:
        """A tree without states takes none."""
        raise NotImplementedError("RadixCache holds no states")

    def inc_lock_ref(self, node: TreeNode) -> None:
        """Protect root..node."""
        while node is not self._root:
            if node.lock_ref == 0:
                self._evictable_tokens -= len(node.key)
                self._protected_tokens += len(node.key)
            node.lock_ref += 1
            assert node.parent is not None, "locked node was removed"
            node = node.parent

    def dec_lock_ref(self, node: TreeNode) -> None:
        """Undo one `inc_lock_ref`."""
        while node is not self._root:
            assert node.lock_ref > 0, f"tree node {node.id} unlocked more often than locked"
            node.lock_ref -= 1
            if node.lock_ref == 0:
                self._protected_tokens -= len(node.key)
                self._evictable_tokens += len(node.key)
                self._kv_lru.push(node)
            assert node.parent is not None, "locked node was removed"
            node = node.parent

    def lock_state(self, node: TreeNode, step: int) -> None:
        """A tree without states has nothing to lock."""

    def evict(self, num_tokens: int) -> int:
        """Remove least recently used leaves until `num_tokens` are free or none is left."""
        freed = 0
        while freed < num_tokens:
            leaf = self._kv_lru.pop()
            if leaf is None:
                break
            freed += len(leaf.key)
            self._remove_leaf(leaf)
        self._num_evicted_tokens += freed
        return freed

    def evict_states(self, num_states: int) -> int:
        """No states here."""
        return 0

    def usage(self) -> CacheUsage:
        """Sizes and counters."""
        return CacheUsage(
            self._evictable_tokens,
            self._protected_tokens,
            counters={"evicted_tokens": self._num_evicted_tokens, "tree_nodes": self._num_nodes},
        )

    def nodes(self) -> Iterator[TreeNode]:
        """All nodes but the root, parents first."""
        stack = list(reversed(self._root.children.values()))
        while stack:
            node = stack.pop()
            yield node
            stack.extend(reversed(node.children.values()))

    def reset(self) -> None:
        """Remove every node, deepest first."""
        for node in reversed(list(self.nodes())):
            assert node.lock_ref == 0, f"reset while tree node {node.id} is locked"
            self._remove_leaf(node)

    # -- walking ---------------------------------------------------------------------------------

    def _child_key(self, token_ids: IntArray) -> bytes:
        return token_ids[: self._page].tobytes()

    def _walk(self, token_ids: IntArray) -> tuple[list[TreeNode], int]:
        """Nodes whose edges match in full, and page-aligned matching tokens of the next edge."""
        path = [self._root]
        while len(token_ids) - path[-1].end >= self._page:
            rest = token_ids[path[-1].end :]
            child = path[-1].children.get(self._child_key(rest))
            if child is None:
                break
            common = _common_prefix_len(child.key, rest) // self._page * self._page
            if common < len(child.key):
                return path, common
            path.append(child)
        return path, 0

    def _slots_of(self, path: list[TreeNode]) -> IntArray:
        return np.concatenate([node.value for node in path]) if len(path) > 1 else NO_SLOTS

    def _touch(self, path: list[TreeNode]) -> None:
        self._clock += 1
        for node in path:
            node.kv_time = self._clock
        self._kv_lru.push(path[-1])
        self._kv_lru.compact(self._num_nodes)

    # -- changing --------------------------------------------------------------------------------

    def _new_node(self, parent: TreeNode | None, end: int) -> TreeNode:
        owner = self._owners.register(f"tree node {self._next_id}")
        node = TreeNode(self._next_id, owner, parent, end)
        self._next_id += 1
        return node

    def _add_leaf(self, parent: TreeNode, key: IntArray, slots: IntArray, owner: int) -> TreeNode:
        node = self._new_node(parent, parent.end + len(key))
        node.key, node.value = key.copy(), slots.copy()
        self._kv.reown(slots, owner, node.owner)
        parent.children[self._child_key(key)] = node
        self._evictable_tokens += len(key)
        self._num_nodes += 1
        return node

    def _split(self, node: TreeNode, at: int) -> TreeNode:
        """Cut the edge of `node` after `at` tokens; returns the new upper node.

        `node` keeps its end, its children, its state and its identity: whoever holds it still
        holds the same prefix. The upper part inherits its locks.
        """
        parent = node.parent
        assert parent is not None and 0 < at < len(node.key)
        upper = self._new_node(parent, parent.end + at)
        upper.key, upper.value = node.key[:at], node.value[:at]
        upper.lock_ref, upper.kv_time = node.lock_ref, node.kv_time
        self._kv.reown(upper.value, node.owner, upper.owner)
        parent.children[self._child_key(upper.key)] = upper
        node.key, node.value, node.parent = node.key[at:], node.value[at:], upper
        upper.children[self._child_key(node.key)] = node
        self._num_nodes += 1
        return upper

    def _is_evictable_leaf(self, node: TreeNode) -> bool:
        return (
            node.parent is not None
            and not node.children
            and node.lock_ref == 0
            and node.state_lock == 0
        )

    def _remove_leaf(self, node: TreeNode) -> None:
        parent = node.parent
        assert parent is not None and not node.children
        self._kv.free(node.value, node.owner)
        self._evictable_tokens -= len(node.key)
        self._num_nodes -= 1
        del parent.children[self._child_key(node.key)]
        node.parent = None
        self._kv_lru.push(parent)


def _common_prefix_len(a: IntArray, b: IntArray) -> int:
    length = min(len(a), len(b))
    different = np.flatnonzero(a[:length] != b[:length])
    return int(different[0]) if len(different) else length
