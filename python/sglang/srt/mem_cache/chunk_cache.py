"""The cache that reuses nothing (`--disable-radix-cache`): requests keep all that they allocate."""

from __future__ import annotations

from collections.abc import Iterator

from sglang.srt.mem_cache.allocator import IntArray
from sglang.srt.mem_cache.base_prefix_cache import (
    NO_SLOTS,
    BasePrefixCache,
    CacheUsage,
    InsertResult,
    MatchResult,
    TreeNode,
)


class ChunkCache(BasePrefixCache):
    """Matches nothing, holds nothing. `insert` and `attach_state` are never called on it."""

    def __init__(self) -> None:
        self._root = TreeNode(0, 0, None, 0)

    @property
    def enabled(self) -> bool:
        """Never."""
        return False

    def match_prefix(self, token_ids: IntArray) -> MatchResult:
        """Nothing matches."""
        return MatchResult(NO_SLOTS, self._root)

    def insert(
        self, token_ids: IntArray, slots: IntArray, protected_len: int, owner: int
    ) -> InsertResult:
        """Refused: callers ask `enabled` first."""
        raise NotImplementedError("ChunkCache holds nothing")

    def attach_state(self, node: TreeNode, slot: int, owner: int) -> bool:
        """Refused: callers ask `enabled` first."""
        raise NotImplementedError("ChunkCache holds nothing")

    def inc_lock_ref(self, node: TreeNode) -> None:
        """Nothing to protect."""

    def dec_lock_ref(self, node: TreeNode) -> None:
        """Nothing to protect."""

    def lock_state(self, node: TreeNode, step: int) -> None:
        """Nothing to protect."""

    def evict(self, num_tokens: int) -> int:
        """Nothing to free."""
        return 0

    def evict_states(self, num_states: int) -> int:
        """Nothing to free."""
        return 0

    def usage(self) -> CacheUsage:
        """Empty."""
        return CacheUsage()

    def nodes(self) -> Iterator[TreeNode]:
        """None."""
        return iter(())

    def reset(self) -> None:
        """Nothing to free."""
