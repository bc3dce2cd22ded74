"""The prefix trees by example; test/srt/stateful has them in any order."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sglang.srt.mem_cache.allocator import OwnerTable, TokenToKVPoolAllocator
from sglang.srt.mem_cache.mamba_radix_cache import MambaRadixCache
from sglang.srt.mem_cache.memory_pool import MambaPool

SIZE = 64


class Tree:
    """A hybrid tree with its pools, and one owner who inserts."""

    def __init__(self, num_states: int = 4, page: int = 1) -> None:
        self.owners = OwnerTable()
        self.kv = TokenToKVPoolAllocator(SIZE, page, self.owners)
        self.mamba = MambaPool(num_states, {}, torch.float32, torch.float32, "cpu", self.owners)
        self.cache = MambaRadixCache(self.kv, self.mamba, self.owners)
        self.me = self.owners.register("request r")

    def insert(self, tokens: list[int], state: bool = True):
        array = np.asarray(tokens, dtype=np.int32)
        slots = self.kv.alloc_extend(0, 0, len(tokens), self.me)
        assert slots is not None
        result = self.cache.insert(array, slots, 0, self.me)
        if state:
            slot = self.mamba.alloc(1, self.me)
            assert slot is not None
            self.cache.attach_state(result.node, int(slot[0]), self.me)
        return slots, result

    def match(self, tokens: list[int]):
        return self.cache.match_prefix(np.asarray(tokens, dtype=np.int32))


def test_match_kv_without_state_reuses_only_up_to_a_state() -> None:
    tree = Tree()
    tree.insert([1, 2, 3])
    tree.insert([1, 2, 3, 4, 5, 6], state=False)
    found = tree.match([1, 2, 3, 4, 5, 6, 7])
    assert (found.prefix_len, found.kv_match_len) == (3, 6)


def test_match_inside_an_edge_finds_branch_point_and_no_state() -> None:
    tree = Tree()
    tree.insert([1, 2, 3, 4])
    found = tree.match([1, 2, 9])
    assert (found.prefix_len, found.kv_match_len, found.state_slot) == (0, 2, None)


def test_insert_duplicate_part_points_at_the_cache_and_frees_its_own() -> None:
    """mini-sglang 142: the caller learns what to rewrite before the freed slots are reused."""
    tree = Tree()
    first, _ = tree.insert([1, 2, 3])
    second, result = tree.insert([1, 2, 3, 4, 5])
    assert result.slots.tolist() == [*first.tolist(), *second[3:].tolist()]
    assert (result.duplicate_start, result.duplicate_end) == (0, 3)
    assert set(second[:3].tolist()) <= set(tree.kv.pages.free_slots().tolist())


def test_split_keeps_identity_of_whoever_holds_the_lower_end() -> None:
    tree = Tree()
    _, result = tree.insert([1, 2, 3, 4])
    tree.cache.inc_lock_ref(result.node)
    tree.insert([1, 2, 8], state=False)
    assert result.node.end == 4 and result.node.state_slot is not None
    assert tree.match([1, 2, 3, 4]).node is result.node
    tree.cache.dec_lock_ref(result.node)
    assert tree.cache.usage().protected_tokens == 0


def test_attach_second_state_to_node_is_given_back() -> None:
    tree = Tree()
    tree.insert([1, 2, 3])
    free = tree.mamba.available_size()
    tree.insert([1, 2, 3])
    assert tree.mamba.available_size() == free


def test_evict_kv_takes_the_oldest_leaf_with_its_state() -> None:
    tree = Tree()
    tree.insert([1, 2, 3])
    tree.insert([5, 6, 7])
    tree.match([1, 2, 3])
    assert tree.cache.evict(1) == 3
    assert tree.match([5, 6, 7]).prefix_len == 0 and tree.match([1, 2, 3]).prefix_len == 3
    assert tree.mamba.available_size() == 3


def test_evict_states_inside_keeps_kv_and_leaf_goes_as_a_whole() -> None:
    tree = Tree()
    tree.insert([1, 2, 3])
    tree.insert([1, 2, 3, 4, 5, 6])
    assert tree.cache.evict_states(1) == 1
    assert tree.kv.available_size() == SIZE - 6
    assert tree.match([1, 2, 3, 4, 5, 6]).prefix_len == 6
    assert tree.cache.evict_states(1) == 1
    assert tree.kv.available_size() == SIZE


def test_evict_everything_locked_frees_nothing_and_ends() -> None:
    tree = Tree()
    _, result = tree.insert([1, 2, 3])
    tree.cache.inc_lock_ref(result.node)
    assert tree.cache.evict(10) == 0
    tree.cache.dec_lock_ref(result.node)
    assert tree.cache.evict(10) == 3


@pytest.mark.parametrize("kv_lock", [False, True])
def test_evict_after_state_was_held_finds_the_leaf_again(kv_lock: bool) -> None:
    """A leaf that was passed over while its state was held must come back into the order."""
    tree = Tree()
    _, result = tree.insert([1, 2, 3])
    tree.cache.lock_state(result.node, 1)
    if kv_lock:
        tree.cache.inc_lock_ref(result.node)
        tree.cache.dec_lock_ref(result.node)
    assert tree.cache.evict(3) == 0 and tree.cache.evict_states(1) == 0
    tree.cache.lock_state(result.node, -1)
    assert tree.cache.evict(3) == 3
    assert tree.mamba.available_size() == 4


def test_pages_prompts_that_part_inside_a_page_share_whole_pages_only() -> None:
    tree = Tree(page=4)
    tree.insert([1] * 8)
    assert tree.match([1] * 6 + [2] * 2).kv_match_len == 4


def test_reset_with_locked_node_is_refused() -> None:
    tree = Tree()
    _, result = tree.insert([1, 2, 3])
    tree.cache.inc_lock_ref(result.node)
    with pytest.raises(AssertionError, match="locked"):
        tree.cache.reset()
