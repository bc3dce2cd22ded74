"""The latency model, its fit and the chunk sizes that follow from it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang.srt.managers.chunk_sizer import (
    ChunkSizePredictor,
    DynamicChunkBudget,
    FitError,
    LatencyModel,
    LatencySample,
    fit_latency_model,
    profile_requests,
    well_determined,
)
from sglang.srt.managers.schedule_policy import chunk_end, state_grid

LINEAR_ONLY = LatencyModel(a=0.0, b=2e-4, c=3e-3, g=0.0)
WEAK_ATTENTION = LatencyModel(a=2e-9, b=2e-4, c=3e-3, g=1e-8)
ATTENTION_ONLY = LatencyModel(a=1e-7, b=1e-4, c=2e-3, g=2e-7)
STAGES = [LINEAR_ONLY, WEAK_ATTENTION, ATTENTION_ONLY]


def measure(model: LatencyModel, noise: float, seed: int, limit: int = 48) -> list[LatencySample]:
    """What profiling would see of a stage with this model."""
    rng = np.random.default_rng(seed)
    samples = []
    for request in profile_requests(512, 8192, 8192, limit):
        start = 0
        for count in request.chunks:
            seconds = model.seconds(start, count) * math.exp(rng.normal(0, noise))
            samples.append(LatencySample(start, count, seconds))
            start += count
    return samples


@pytest.mark.parametrize("model", STAGES, ids=["linear", "weak", "attention"])
def test_fit_recovers_exact_timings(model: LatencyModel) -> None:
    fitted = fit_latency_model(measure(model, 0.0, 0))
    for prefix_len, count in [(0, 64), (0, 512), (4096, 512), (30000, 256)]:
        expected = model.seconds(prefix_len, count)
        assert fitted.seconds(prefix_len, count) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("noise", [0.02, 0.10])
@pytest.mark.parametrize("model", STAGES, ids=["linear", "weak", "attention"])
def test_fit_holds_under_noise_on_every_kind_of_stage(model: LatencyModel, noise: float) -> None:
    """Upstream refuses the fit on about half of the starts of a linear-only stage."""
    errors = []
    for seed in range(40):
        fitted = fit_latency_model(measure(model, noise, seed))
        assert min(fitted.a, fitted.b, fitted.c, fitted.g) >= 0
        sizes = [(0, 512), (2048, 384), (6000, 256)]
        errors += [abs(fitted.seconds(*s) / model.seconds(*s) - 1) for s in sizes]
    assert np.median(errors) < 2.5 * noise


def test_fit_ignores_a_cold_sample() -> None:
    """SGLang 17198: the first profiling sample took thirty times as long and bent the fit."""
    samples = measure(WEAK_ATTENTION, 0.01, 1)
    first = samples[0]
    samples[0] = LatencySample(first.prefix_len, first.num_tokens, first.seconds * 30)
    fitted = fit_latency_model(samples)
    assert fitted.seconds(2048, 512) == pytest.approx(WEAK_ATTENTION.seconds(2048, 512), rel=0.03)


def test_fit_refuses_samples_of_one_length() -> None:
    """With a base chunk of 102 or less upstream's 128 samples all have the same length."""
    with pytest.raises(FitError, match="distinct lengths"):
        fit_latency_model([LatencySample(0, 16, 0.01)] * 128)


@pytest.mark.parametrize("base", [4, 16, 100, 102, 3072, 100_000])
@pytest.mark.parametrize("max_tokens", [64, 2048, 200_000])
def test_profile_requests_have_distinct_lengths_and_fit(base: int, max_tokens: int) -> None:
    """SGLang 23621: any chunk size can be profiled, whatever the pools hold."""
    requests = profile_requests(base, max_tokens, min(16384, max_tokens), 128)
    assert len(requests) == 128
    assert len({count for request in requests for count in request.chunks}) >= 3
    assert any(len(request.chunks) > 1 for request in requests) or base >= max_tokens
    assert all(0 < request.num_tokens <= max_tokens for request in requests)


def test_profile_requests_refuse_a_pool_of_two_tokens() -> None:
    with pytest.raises(FitError, match="distinct chunk lengths"):
        profile_requests(512, 2, 2, 128)


def test_more_noise_needs_more_samples() -> None:
    assert well_determined([measure(WEAK_ATTENTION, 0.01, 0, limit=12)])
    assert not well_determined([measure(WEAK_ATTENTION, 0.5, 0, limit=12)])


coefficients = st.tuples(
    st.one_of(st.just(0.0), st.floats(1e-11, 1e-5)),
    st.one_of(st.just(0.0), st.floats(1e-7, 1e-3)),
    st.floats(1e-5, 1e-1),
    st.one_of(st.just(0.0), st.floats(1e-10, 1e-6)),
)
models = coefficients.map(lambda v: LatencyModel(*v))
predictors = st.builds(
    lambda stages, grid, base, smooth, most: ChunkSizePredictor(
        tuple(stages), base * grid, grid, max(base, most) * grid, smooth
    ),
    st.lists(models, min_size=1, max_size=3),
    st.sampled_from([1, 7, 16, 64]),
    st.integers(1, 64),
    st.floats(0, 1),
    st.integers(1, 256),
)


@given(predictors, st.integers(0, 10**6))
def test_prediction_is_aligned_and_bounded(predictor: ChunkSizePredictor, prefix: int) -> None:
    """vllm-ascend 10746: a flat-latency hybrid once got a chunk of None or less than one."""
    size = predictor.predict_next_chunk_size(prefix)
    assert size % predictor.grid == 0
    assert predictor.grid <= size <= predictor.max_tokens


@given(predictors, st.lists(st.integers(0, 10**6), min_size=2, max_size=6))
def test_prediction_never_grows_with_the_prefix(
    predictor: ChunkSizePredictor, prefixes: list[int]
) -> None:
    sizes = [predictor.predict_next_chunk_size(prefix) for prefix in sorted(prefixes)]
    assert sizes == sorted(sizes, reverse=True)


@given(predictors, st.integers(0, 10**5))
def test_smooth_factor_mixes_static_size_and_model(
    predictor: ChunkSizePredictor, prefix: int
) -> None:
    static = ChunkSizePredictor(predictor.models, predictor.base, predictor.grid,
                                predictor.max_tokens, 0.0)  # fmt: skip
    assert static.predict_next_chunk_size(prefix) == predictor.base


def test_first_chunk_is_the_static_size() -> None:
    predictor = ChunkSizePredictor((ATTENTION_ONLY, LINEAR_ONLY), 512, 64, 16384, 1.0)
    assert predictor.predict_next_chunk_size(0) == 512


def test_predicted_chunks_take_equal_time() -> None:
    predictor = ChunkSizePredictor((ATTENTION_ONLY,), 1024, 1, 16384, 1.0)
    target = ATTENTION_ONLY.seconds(0, 1024)
    for prefix in (1024, 5000, 20000):
        size = predictor.predict_next_chunk_size(prefix)
        assert ATTENTION_ONLY.seconds(prefix, size) == pytest.approx(target, rel=0.02)


def test_micro_batch_of_several_requests_is_levelled_as_a_whole() -> None:
    predictor = ChunkSizePredictor((ATTENTION_ONLY,), 1024, 1, 16384, 1.0)
    rows = [(8000, 100)]
    size = predictor.predict_next_chunk_size(2000, rows)
    together = predictor.seconds([*rows, (2000, size)])
    assert together == pytest.approx(ATTENTION_ONLY.seconds(0, 1024), rel=0.02)
    assert predictor.predict_next_chunk_size(0, [(0, 1024)]) == 0


@given(predictors, st.integers(1, 20000), st.integers(0, 5000), st.integers(1, 64))
def test_chunks_add_up_to_the_prompt(
    predictor: ChunkSizePredictor, num_tokens: int, cached: int, page: int
) -> None:
    """Whatever the model says: progress, aligned ends, the whole prompt, tails joined."""
    budget = DynamicChunkBudget(predictor)
    start = min(cached // predictor.grid * predictor.grid, num_tokens - 1)
    chunks = []
    while start < num_tokens and len(chunks) < 50:
        budget.start_batch()
        length = budget.next_len(start)
        end = chunk_end(start, num_tokens, length, predictor.grid, budget.join_tail(length))
        assert end > start, "a chunk never stands still"
        assert end == num_tokens or end % predictor.grid == 0
        assert end - start <= max(length + (length - 1) // 2, predictor.grid)
        chunks.append(end - start)
        start = end
    if start == num_tokens:
        assert sum(chunks) == num_tokens - min(
            cached // predictor.grid * predictor.grid, num_tokens - 1
        )


@pytest.mark.parametrize(
    "page, chunk, hybrid, grid",
    [(1, 512, True, 64), (16, 512, True, 64), (64, 512, True, 64), (1, 16, True, 16),
     (1, 3, True, 3), (16, 3, True, 16), (16, 100, True, 64), (1, None, True, 64),
     (1, 512, False, 1), (16, 512, False, 16), (16, 40, True, 32)],
)  # fmt: skip
def test_one_grid_for_chunks_pages_and_states(
    page: int, chunk: int | None, hybrid: bool, grid: int
) -> None:
    """vLLM 54076: chunks ended on one grid, checkpoints lay on another, and never met."""
    assert state_grid(page, chunk, hybrid) == grid
    assert grid % page == 0
