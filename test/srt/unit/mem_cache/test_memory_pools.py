"""Pools: slots together or not at all, states fresh or copied, tensors of this stage's layers."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from sglang.srt.mem_cache.allocator import OwnerTable, SlotError
from sglang.srt.mem_cache.layer_specs import AttentionSpec, MambaSpec
from sglang.srt.mem_cache.memory_pool import (
    HybridReqToTokenPool,
    MambaPool,
    MHATokenToKVPool,
    ReqToTokenPool,
)

SPEC = MambaSpec(conv_dim=3, conv_kernel=4, state_shape=(2, 5))


def new_req(owners: OwnerTable, rid: str = "r") -> SimpleNamespace:
    owner = owners.register(f"request {rid}")
    return SimpleNamespace(
        owner=owner, req_pool_idx=None, mamba_pool_idx=None, mamba_track_idx=None
    )


def hybrid(size: int, states: int, extra: bool) -> tuple[HybridReqToTokenPool, OwnerTable]:
    owners = OwnerTable()
    mamba = MambaPool(states, {}, torch.float32, torch.float32, "cpu", owners)
    return HybridReqToTokenPool(size, 16, "cpu", owners, mamba, extra), owners


@pytest.mark.parametrize(("states", "extra"), [(0, False), (1, True)])
def test_hybrid_alloc_short_of_states_takes_nothing(states: int, extra: bool) -> None:
    pool, owners = hybrid(2, states, extra)
    req = new_req(owners)
    assert not pool.alloc(req)
    assert (pool.available_size(), pool.mamba_pool.available_size()) == (2, states)
    assert req.req_pool_idx is None and req.mamba_pool_idx is None


def test_hybrid_alloc_short_of_request_slots_takes_no_state() -> None:
    pool, owners = hybrid(1, 4, True)
    assert pool.alloc(new_req(owners))
    assert not pool.alloc(new_req(owners))
    assert pool.mamba_pool.available_size() == 2


def test_hybrid_free_gives_both_slots_back_once() -> None:
    pool, owners = hybrid(1, 2, True)
    req = new_req(owners)
    pool.alloc(req)
    taken = req.mamba_pool_idx
    pool.free_mamba_cache(req)
    pool.free(req)
    assert (pool.available_size(), pool.mamba_pool.available_size()) == (1, 2)
    with pytest.raises(AssertionError):
        pool.free_mamba_cache(req)
    req.mamba_pool_idx = taken
    with pytest.raises(SlotError, match=f"Mamba slot {taken} .*request r"):
        pool.free_mamba_cache(req)


def test_dense_pool_has_no_mamba_slot_to_free() -> None:
    owners = OwnerTable()
    pool = ReqToTokenPool(1, 16, "cpu", owners)
    req = new_req(owners)
    assert pool.alloc(req)
    pool.free_mamba_cache(req)
    pool.free(req)


def test_mamba_pool_holds_conv_and_state_of_its_layers_in_their_dtypes() -> None:
    pool = MambaPool(4, {2: SPEC, 5: SPEC}, torch.bfloat16, torch.float32, "cpu")
    assert pool.conv_state(2).shape == (5, 3, 3) and pool.conv_state(2).dtype is torch.bfloat16
    assert pool.temporal_state(5).shape == (5, 2, 5)
    assert pool.temporal_state(5).dtype is torch.float32
    with pytest.raises(KeyError):
        pool.conv_state(0)


def test_mamba_pool_copy_and_zero_touch_only_their_slots() -> None:
    """syv-ai 43: a state starts at zero or at the restored value, in every layer."""
    pool = MambaPool(3, {0: SPEC, 1: SPEC}, torch.float32, torch.float32, "cpu")
    for layer in (0, 1):
        for state in (pool.conv_state(layer), pool.temporal_state(layer)):
            state.copy_(torch.randn_like(state))
    before = {layer: pool.temporal_state(layer).clone() for layer in (0, 1)}
    pool.copy([(1, 2)])
    pool.zero([3])
    for layer in (0, 1):
        assert torch.equal(pool.temporal_state(layer)[2], before[layer][1])
        assert torch.equal(pool.temporal_state(layer)[1], before[layer][1])
        assert not pool.temporal_state(layer)[3].any() and not pool.conv_state(layer)[3].any()


def test_kv_pool_first_page_is_padding_and_widths_may_differ() -> None:
    pool = MHATokenToKVPool(8, 4, {1: AttentionSpec(2, 6, 3)}, torch.float32, "cpu")
    k, v = pool.get_kv_buffer(1)
    assert k.shape == (12, 2, 6) and v.shape == (12, 2, 3)
    loc = torch.tensor([4, 7])
    pool.set_kv_buffer(1, loc, torch.ones(2, 2, 6), torch.ones(2, 2, 3))
    assert k[loc].eq(1).all() and k.sum() == 2 * 2 * 6
