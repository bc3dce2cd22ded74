"""From memory to slots."""

from __future__ import annotations

import pytest

from sglang.srt.mem_cache.layer_specs import AttentionSpec, MambaSpec
from sglang.srt.mem_cache.sizing import (
    CACHED_STATES_PER_REQUEST,
    PoolSizes,
    SizingError,
    SizingRequest,
    StageCost,
    check_request,
    max_running_for,
    size_pools,
    stage_cost,
)

ATTENTION = (AttentionSpec(num_kv_heads=2, head_dim=32, v_head_dim=16),)
LINEAR = (MambaSpec(conv_dim=64, conv_kernel=4, state_shape=(4, 16, 8)),)
KV_BYTES = 2 * (32 + 16) * 4
STATE_BYTES = 64 * 3 * 4 + 4 * 16 * 8 * 4


def request(**changes) -> SizingRequest:
    values = {
        "max_total_tokens": None,
        "max_mamba_cache_size": None,
        "max_running_requests": None,
        "mamba_full_memory_ratio": 1.0,
        "page_size": 1,
        "context_len": 2048,
        "slots_per_request": 1,
        **changes,
    }
    return SizingRequest(**values)


def test_stage_cost_of_slice_pays_for_its_own_layers() -> None:
    """SGLang 33666: the Mamba pool of a stage is sized by that stage's layers."""
    layers = [LINEAR, LINEAR, LINEAR, ATTENTION] * 2
    assert stage_cost(layers, 4, 4, 4) == StageCost(2 * KV_BYTES, 6 * STATE_BYTES)
    assert stage_cost(layers[:3], 4, 4, 4) == StageCost(0, 3 * STATE_BYTES)
    assert stage_cost(layers[3:4], 4, 4, 4) == StageCost(KV_BYTES, 0)


def test_stage_cost_of_layers_that_remember_both_or_nothing() -> None:
    """Attention and Mamba side by side (Falcon-H1), and layers that are an MLP (Nemotron-H)."""
    both = (*ATTENTION, *LINEAR)
    assert stage_cost([both, both], 4, 4, 4) == StageCost(2 * KV_BYTES, 2 * STATE_BYTES)
    assert stage_cost([(), both, ()], 4, 4, 4) == StageCost(KV_BYTES, STATE_BYTES)
    assert stage_cost([(), ()], 4, 4, 4) == StageCost(0, 0)


def test_size_pools_of_a_stage_that_remembers_nothing_asks_for_what_is_useful() -> None:
    """Memory bounds neither pool there: the other stages decide."""
    sizes = size_pools(request(max_running_requests=2), stage_cost([()], 4, 4, 4), 1)
    assert sizes.num_tokens == 4 * 2048
    assert sizes.num_states == 2 * (1 + CACHED_STATES_PER_REQUEST)


def test_size_pools_heaviest_stage_has_fewest_slots() -> None:
    """SGLang 33666: the stages agree on the smallest, which is the heaviest stage's."""
    budget = 50 * STATE_BYTES * 6
    heavy = size_pools(request(), stage_cost([LINEAR] * 6, 4, 4, 4), budget)
    light = size_pools(request(), stage_cost([LINEAR] * 3, 4, 4, 4), budget)
    assert (heavy.num_states, light.num_states) == (50, 100)
    assert min(heavy.num_states, light.num_states) == heavy.num_states


@pytest.mark.parametrize("ratio", [0.25, 1.0, 3.0])
def test_size_pools_both_kinds_splits_memory_by_ratio(ratio: float) -> None:
    cost = StageCost(100, 1000)
    budget = 1_000_000
    sizes = size_pools(request(mamba_full_memory_ratio=ratio), cost, budget)
    assert sizes.num_tokens * 100 + sizes.num_states * 1000 <= budget
    if sizes.num_states < 256 * 5 and sizes.num_tokens < 2**20:
        assert sizes.num_states * 1000 / (sizes.num_tokens * 100) == pytest.approx(ratio, rel=0.02)


def test_size_pools_explicit_sizes_are_kept_or_refused_with_numbers() -> None:
    cost = StageCost(1 << 20, 1 << 20)
    sizes = size_pools(request(max_total_tokens=64, max_mamba_cache_size=8), cost, 100 << 20)
    assert (sizes.num_tokens, sizes.num_states) == (64, 8)
    with pytest.raises(SizingError, match=r"--max-mamba-cache-size 200 needs 200 MiB.*100 MiB"):
        size_pools(request(max_mamba_cache_size=200), cost, 100 << 20)
    with pytest.raises(SizingError, match="--max-total-tokens 101"):
        size_pools(request(max_total_tokens=101, max_mamba_cache_size=1), cost, 100 << 20)


def test_size_pools_pages_round_down() -> None:
    sizes = size_pools(request(max_total_tokens=1000, page_size=64), StageCost(8, 8), 1 << 20)
    assert sizes.num_tokens == 960


def test_size_pools_memory_for_nothing_names_flag() -> None:
    with pytest.raises(SizingError, match="--mem-fraction-static"):
        size_pools(request(), StageCost(1 << 20, 1 << 20), 1 << 10)


def test_check_request_before_loading_clamps_with_both_numbers() -> None:
    """vLLM 49064, SGLang 18786: known before weights load, with a warning naming both."""
    warning = check_request(
        request(max_mamba_cache_size=16, max_running_requests=12, slots_per_request=2), True
    )
    assert warning is not None
    assert all(part in warning for part in ("--max-running-requests 12", "24", "16", "8 requests"))
    assert max_running_for(PoolSizes(1000, 16, 12), 2, True) == 8


def test_check_request_not_one_request_fits_refused() -> None:
    with pytest.raises(SizingError, match="--max-mamba-cache-size 1 holds no request"):
        check_request(request(max_mamba_cache_size=1, slots_per_request=2), True)
    with pytest.raises(SizingError, match="two pages"):
        check_request(request(max_total_tokens=64, page_size=64), False)


def test_check_request_model_without_states_ignores_mamba_flags() -> None:
    assert check_request(request(max_mamba_cache_size=1, max_running_requests=9), False) is None
    assert max_running_for(PoolSizes(1000, 0, 12), 0, False) == 12
