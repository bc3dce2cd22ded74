"""The contract of a prefix cache.

Ownership. A request's KV slots are first its own. `insert` moves them to the cache; from then on
the request only reads them, protected by a lock (`inc_lock_ref`) until it is released. Whatever
the cache already holds stays the cache's, and the request is pointed at the cache's copy before
its own duplicate is freed: a page table never names a free slot.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from sglang.srt.mem_cache.allocator import IntArray

NO_SLOTS: IntArray = np.empty(0, dtype=np.int32)


class TreeNode:
    """An edge of the tree with its end: tokens `key`, their KV slots `value`, maybe a state.

    lock_ref: running requests whose prefix passes through here; 0 means evictable.
    state_lock: holders that are about to copy the state; a locked state is not evicted.
    """

    __slots__ = (
        "children",
        "end",
        "id",
        "key",
        "kv_time",
        "lock_ref",
        "owner",
        "parent",
        "state_lock",
        "state_slot",
        "state_time",
        "value",
    )

    def __init__(self, node_id: int, owner: int, parent: TreeNode | None, end: int) -> None:
        self.id = node_id
        self.owner = owner
        self.parent = parent
        self.end = end  # tokens from the root to the end of this edge
        self.key: IntArray = NO_SLOTS
        self.value: IntArray = NO_SLOTS
        self.children: dict[bytes, TreeNode] = {}
        self.lock_ref = 0
        self.state_lock = 0
        self.state_slot: int | None = None
        self.kv_time = 0
        self.state_time = 0


@dataclass(frozen=True)
class MatchResult:
    """What a prompt can reuse.

    kv_indices: slots of the reusable prefix (its length is the prefix length).
    node: where the prefix ends; lock it before anything else is allocated.
    state_slot: Mamba slot to copy from, None for a model without states or an empty prefix.
    kv_match_len: how far the KV alone matches, at least the prefix length. A state saved there
        lets the next prompt that branches off at this point start from it.
    """

    kv_indices: IntArray
    node: TreeNode
    state_slot: int | None = None
    kv_match_len: int = 0

    @property
    def prefix_len(self) -> int:
        """Tokens that need no computation."""
        return len(self.kv_indices)


@dataclass
class InsertResult:
    """Where an inserted sequence ends, and the slots by which the tree holds it.

    `slots[duplicate_start:duplicate_end]` replace the request's own slots, which the cache has
    freed: the caller must rewrite the page table before the next plan.
    """

    node: TreeNode
    slots: IntArray
    duplicate_start: int
    duplicate_end: int


@dataclass
class CacheUsage:
    """Tokens and states that the cache holds."""

    evictable_tokens: int = 0
    protected_tokens: int = 0
    evictable_states: int = 0
    protected_states: int = 0
    counters: dict[str, int] = field(default_factory=dict)


class BasePrefixCache(ABC):
    """Prefix cache over token ids (int32 arrays). All lengths are page aligned."""

    @property
    @abstractmethod
    def enabled(self) -> bool:
        """False when nothing is ever reused."""

    @abstractmethod
    def match_prefix(self, token_ids: IntArray) -> MatchResult:
        """Longest reusable prefix. Changes no slot; the result is only safe once locked."""

    @abstractmethod
    def insert(
        self, token_ids: IntArray, slots: IntArray, protected_len: int, owner: int
    ) -> InsertResult:
        """Move the KV of `token_ids` from `owner` into the cache.

        `slots[:protected_len]` are the cache's already (the owner holds a lock on them).
        """

    @abstractmethod
    def attach_state(self, node: TreeNode, slot: int, owner: int) -> bool:
        """Give the state in Mamba slot `slot`, held by `owner`, to the node.

        False when the node has one already; the slot is then freed. Either way `owner` no longer
        holds it.
        """

    @abstractmethod
    def inc_lock_ref(self, node: TreeNode) -> None:
        """Protect the KV from the root to `node` against eviction."""

    @abstractmethod
    def dec_lock_ref(self, node: TreeNode) -> None:
        """Undo one `inc_lock_ref` of the same node."""

    @abstractmethod
    def lock_state(self, node: TreeNode, step: int) -> None:
        """Add `step` (1 or -1) to the lock of the node's state."""

    @abstractmethod
    def evict(self, num_tokens: int) -> int:
        """Free at least `num_tokens` tokens of unlocked KV, oldest first; what was freed."""

    @abstractmethod
    def evict_states(self, num_states: int) -> int:
        """Free at least `num_states` unlocked states, oldest first; what was freed."""

    @abstractmethod
    def usage(self) -> CacheUsage:
        """Sizes for accounting."""

    @abstractmethod
    def nodes(self) -> Iterator[TreeNode]:
        """All nodes but the root, parents before children, in insertion order."""

    @abstractmethod
    def reset(self) -> None:
        """Free everything. The caller makes sure that nothing is locked."""
