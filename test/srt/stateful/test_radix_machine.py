"""The radix trees against a set of prefixes: match, insert, lock, states, eviction, in any order.

The model knows, for every page-aligned prefix of every sequence ever inserted, whether its KV is
cached and whether a state sits at its end. It does not know the tree's shape.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sglang.srt.managers.req_memory import ReqMemory
from sglang.srt.managers.runtime_checker import check_memory
from sglang.srt.mem_cache.allocator import OwnerTable, TokenToKVPoolAllocator
from sglang.srt.mem_cache.mamba_radix_cache import MambaRadixCache
from sglang.srt.mem_cache.memory_pool import MambaPool, ReqToTokenPool
from sglang.srt.mem_cache.radix_cache import RadixCache

NUM_PAGES = 14
NUM_STATES = 5
# Sequences in pages: a tree that branches at several depths. Each letter is one page of tokens.
WORDS = ["aaaaaa", "aaab", "aaabcc", "aabb", "abcabc", "b", "bcb", "bcbccc", "cab", "caac"]
WORD = st.sampled_from(WORDS)
PAGES = st.integers(1, 6)
Prefix = tuple[int, ...]


class TreeMachine(RuleBasedStateMachine):
    """Base of both machines; `hybrid` adds states."""

    hybrid = False

    @initialize(page=st.sampled_from([1, 4]))
    def start(self, page: int) -> None:
        self.page = page
        self.owners = OwnerTable()
        self.kv = TokenToKVPoolAllocator(NUM_PAGES * page, page, self.owners)
        self.me = self.owners.register("request r")
        self.mamba = None
        if self.hybrid:
            self.mamba = MambaPool(NUM_STATES, {}, torch.float32, torch.float32, "cpu", self.owners)
            self.tree: RadixCache = MambaRadixCache(self.kv, self.mamba, self.owners)
        else:
            self.tree = RadixCache(self.kv, self.owners)
        pool = ReqToTokenPool(1, 64, "cpu", self.owners)
        self.memory = ReqMemory(self.owners, pool, self.kv, self.tree, self.mamba, page, 64)
        self.cached: dict[Prefix, list[int]] = {}  # prefix -> its last page's slots
        self.states: dict[Prefix, int] = {}
        self.locks: list[SimpleNamespace] = []
        self.recency: list[Prefix] = []  # whole matches and insertions, latest last

    def tokens(self, word: str, pages: int) -> Prefix:
        letters = word[:pages]
        return tuple(ord(c) * 100 + i // 3 for c in letters for i in range(self.page))

    def pages_of(self, tokens: Prefix) -> list[Prefix]:
        return [tokens[:end] for end in range(self.page, len(tokens) + 1, self.page)]

    def longest(self, tokens: Prefix) -> Prefix:
        found: Prefix = ()
        for prefix in self.pages_of(tokens):
            if prefix not in self.cached:
                break
            found = prefix
        return found

    def slots_of(self, tokens: Prefix) -> list[int]:
        return [slot for prefix in self.pages_of(tokens) for slot in self.cached[prefix]]

    def check_leaks(self) -> None:
        """Both leak checks, with this machine's locks as those of requests without slots."""
        holders = [
            SimpleNamespace(rid="r", req_pool_idx=None, last_node=lock.node)
            for lock in self.locks
            if lock.kv
        ]
        held = {lock.tokens for lock in self.locks if lock.state}
        check_memory(self.memory, holders, locked_states=len(held))

    def locked(self, prefix: Prefix) -> bool:
        return any(lock.tokens[: len(prefix)] == prefix for lock in self.locks)

    # -- rules -----------------------------------------------------------------------------------

    @rule(word=WORD, pages=PAGES, rest=st.integers(0, 3))
    def match(self, word: str, pages: int, rest: int) -> None:
        tokens = self.tokens(word, pages) + (1,) * (rest % self.page)
        found = self.tree.match_prefix(np.asarray(tokens, dtype=np.int32))
        kv = self.longest(tokens)
        reuse = kv
        if self.hybrid:
            reuse = max((p for p in self.pages_of(kv) if p in self.states), key=len, default=())
            assert found.state_slot == self.states.get(reuse)
        assert found.kv_match_len == len(kv)
        assert found.node.end == found.prefix_len == len(reuse)
        assert found.kv_indices.tolist() == self.slots_of(reuse)

    @rule(word=WORD, pages=PAGES, state=st.booleans(), keep_lock=st.booleans())
    def insert(self, word: str, pages: int, state: bool, keep_lock: bool) -> None:
        """A request matches, locks, computes the rest in slots of its own and hands all over."""
        tokens = self.tokens(word, pages)
        array = np.asarray(tokens, dtype=np.int32)
        found = self.tree.match_prefix(array)
        self.tree.inc_lock_ref(found.node)
        have = found.prefix_len
        slots = self.kv.alloc_extend(have, 0, len(tokens) - have, self.me)
        if slots is None:
            self.tree.dec_lock_ref(found.node)
            return
        own = np.concatenate([found.kv_indices, slots]).astype(np.int32)
        result = self.tree.insert(array, own, have, self.me)
        known = len(self.longest(tokens))
        for prefix in self.pages_of(tokens):
            if prefix not in self.cached:
                self.cached[prefix] = own[len(prefix) - self.page : len(prefix)].tolist()
        assert result.slots.tolist() == self.slots_of(tokens)
        assert result.node.end == len(tokens)
        assert (result.duplicate_start, result.duplicate_end) == (have, max(have, known))
        self.tree.inc_lock_ref(result.node)
        self.tree.dec_lock_ref(found.node)
        if state and self.mamba is not None:
            self._attach(tokens, result.node)
        if keep_lock:
            self.locks.append(
                SimpleNamespace(tokens=tokens, node=result.node, state=False, kv=True)
            )
        else:
            self.tree.dec_lock_ref(result.node)

    def _attach(self, tokens: Prefix, node) -> None:
        assert self.mamba is not None
        slot = self.mamba.alloc(1, self.me)
        if slot is None:
            return
        new = tokens not in self.states
        assert self.tree.attach_state(node, int(slot[0]), self.me) == new
        if new:
            self.states[tokens] = int(slot[0])

    @rule(word=WORD, pages=PAGES)
    def lock(self, word: str, pages: int) -> None:
        tokens = self.tokens(word, pages)
        node = self.tree.match_prefix(np.asarray(tokens, dtype=np.int32)).node
        self.tree.inc_lock_ref(node)
        held = SimpleNamespace(tokens=tokens[: node.end], node=node, state=False, kv=True)
        self.locks.append(held)

    @precondition(lambda self: self.locks)
    @rule(pick=st.integers(0, 99))
    def unlock(self, pick: int) -> None:
        held = [lock for lock in self.locks if not lock.state]
        if held:
            lock = held[pick % len(held)]
            self.locks.remove(lock)
            self.tree.dec_lock_ref(lock.node)

    @rule(pages=st.integers(1, 8))
    def evict(self, pages: int) -> None:
        """What is locked stays, what goes is a tail, and eviction stops only when all is locked."""
        freed = self.tree.evict(pages * self.page)
        self._forget(freed)
        if freed < pages * self.page:
            held = [lock.tokens for lock in self.locks]
            assert all(any(h[: len(p)] == p for h in held) for p in self.cached), "idle KV is left"

    def _forget(self, freed: int) -> None:
        """Read back what is left; it must be a prefix-closed part that holds all locked."""
        left: dict[Prefix, list[int]] = {}
        states: dict[Prefix, int] = {}
        tokens_at = {0: ()}
        for node in self.tree.nodes():
            before = tokens_at[node.parent.id]
            full = before + tuple(node.key.tolist())
            tokens_at[node.id] = full
            for prefix in self.pages_of(full):
                if len(prefix) > len(before):
                    left[prefix] = node.value[
                        len(prefix) - self.page - len(before) : len(prefix) - len(before)
                    ].tolist()
            if node.state_slot is not None:
                states[full] = node.state_slot
        assert all(self.cached[prefix] == slots for prefix, slots in left.items())
        assert all(self.states[prefix] == slot for prefix, slot in states.items())
        gone = set(self.cached) - set(left)
        assert not any(self.locked(prefix) for prefix in gone), "locked KV was evicted"
        assert freed == len(gone) * self.page
        self.cached, self.states = left, states

    @precondition(lambda self: not self.locks)
    @rule()
    def reset(self) -> None:
        self.tree.reset()
        self.cached, self.states = {}, {}
        assert self.kv.available_size() == self.kv.size

    @invariant()
    def adds_up(self) -> None:
        if not hasattr(self, "tree"):
            return
        self.check_leaks()
        usage = self.tree.usage()
        total = len(self.cached) * self.page
        protected = sum(self.locked(prefix) for prefix in self.cached) * self.page
        assert usage.protected_tokens == protected
        assert usage.evictable_tokens == total - protected
        assert self.kv.available_size() == self.kv.size - total
        edges = sum(len(node.key) for node in self.tree.nodes())
        assert edges == total, "a page is in two edges"


class HybridTreeMachine(TreeMachine):
    """With states: attaching, holding and evicting them."""

    hybrid = True

    @precondition(lambda self: self.locks)
    @rule(pick=st.integers(0, 99))
    def attach(self, pick: int) -> None:
        lock = self.locks[pick % len(self.locks)]
        if lock.node.end and lock.node.end == len(lock.tokens):
            self._attach(lock.tokens, lock.node)

    @rule(word=WORD, pages=PAGES, and_kv=st.booleans())
    def lock_state(self, word: str, pages: int, and_kv: bool) -> None:
        """Hold a state to copy from; the KV under it may be let go meanwhile."""
        tokens = self.tokens(word, pages)
        found = self.tree.match_prefix(np.asarray(tokens, dtype=np.int32))
        if found.state_slot is None:
            return
        self.tree.lock_state(found.node, 1)
        if and_kv:
            self.tree.inc_lock_ref(found.node)
        reuse = tokens[: found.prefix_len]
        self.locks.append(SimpleNamespace(tokens=reuse, node=found.node, state=True, kv=and_kv))

    @precondition(lambda self: any(lock.state for lock in self.locks))
    @rule(pick=st.integers(0, 99))
    def unlock_state(self, pick: int) -> None:
        held = [lock for lock in self.locks if lock.state]
        lock = held[pick % len(held)]
        self.locks.remove(lock)
        self.tree.lock_state(lock.node, -1)
        if lock.kv:
            self.tree.dec_lock_ref(lock.node)

    @rule(count=st.integers(1, 4))
    def evict_states(self, count: int) -> None:
        """States go oldest first; those that somebody copies from stay."""
        before, free = dict(self.states), self.kv.available_size()
        freed = self.tree.evict_states(count)
        self._forget(self.kv.available_size() - free)
        assert len(before) - len(self.states) == freed
        held = {lock.tokens for lock in self.locks if lock.state}
        assert held <= set(self.states), "a state that is being copied was evicted"
        assert freed == min(count, len(before) - len(held))

    @invariant()
    def states_add_up(self) -> None:
        if not hasattr(self, "tree"):
            return
        usage = self.tree.usage()
        held = {lock.tokens for lock in self.locks if lock.state}
        assert usage.protected_states == len(held)
        assert usage.evictable_states == len(self.states) - len(held)

    @invariant()
    def adds_up(self) -> None:
        """As without states, but a leaf under a held state may wait although its KV is free."""
        if hasattr(self, "tree"):
            self.check_leaks()
            assert sum(len(node.key) for node in self.tree.nodes()) == len(self.cached) * self.page


TestRadixCache = TreeMachine.TestCase
TestMambaRadixCache = HybridTreeMachine.TestCase
