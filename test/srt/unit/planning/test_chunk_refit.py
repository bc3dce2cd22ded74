"""Refitting from live timings: when it happens, and what it may and may not do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang.srt.managers.chunk_refit import (
    ChunkRefitter,
    Refit,
    RefitLimits,
    prediction_error,
    refit,
)
from sglang.srt.managers.chunk_sizer import (
    ChunkSizePredictor,
    DynamicChunkBudget,
    LatencyModel,
    LatencySample,
)
from support.scheduler_harness import Harness, Shape

HYBRID = LatencyModel(a=2e-9, b=2e-5, c=2e-3, g=1e-7)
LIMITS = RefitLimits()


def predictor(*models: LatencyModel) -> ChunkSizePredictor:
    return ChunkSizePredictor(models, base=512, grid=64, max_tokens=8192, smooth=1.0)


def feed(
    refitter: ChunkRefitter, models: list[LatencyModel], count: int, noise: float = 0.0, start=0.0
) -> list[Refit]:
    """A long prompt in chunks, one every second, as these models would time it."""
    rng = np.random.default_rng(0)
    outcomes, prefix = [], 0
    for i in range(count):
        size = refitter.predictor.predict_next_chunk_size(prefix)
        times = [m.seconds(prefix, size) * np.exp(rng.normal(0, noise)) for m in models]
        outcome = refitter.observe([(prefix, size)], times, start + i)
        if outcome is not None:
            outcomes.append(outcome)
        prefix = (prefix + size) % 32768
    return outcomes


def test_nothing_happens_while_predictions_hold() -> None:
    refitter = ChunkRefitter(predictor(HYBRID), 0.0)
    assert feed(refitter, [HYBRID], 400, noise=0.1) == []
    assert refitter.num_refits == 0
    assert refitter.error() < 0.15


def test_a_slower_machine_changes_times_but_not_chunk_sizes() -> None:
    old = predictor(HYBRID)
    slow = LatencyModel(*(2 * v for v in (HYBRID.a, HYBRID.b, HYBRID.c, HYBRID.g)))
    refitter = ChunkRefitter(old, 0.0)
    (outcome,) = feed(refitter, [slow], 64)
    assert outcome.error_before == pytest.approx(0.5, abs=0.01) and outcome.error_after < 0.01
    for prefix in (0, 1000, 30000):
        new_size = refitter.predictor.predict_next_chunk_size(prefix)
        assert abs(new_size - old.predict_next_chunk_size(prefix)) <= 64  # one step of the grid


def test_a_changed_shape_is_followed() -> None:
    """Attention turns out ten times as dear as it was when profiled."""
    real = replace(HYBRID, a=HYBRID.a * 10)
    refitter = ChunkRefitter(predictor(HYBRID, LatencyModel(0, 1e-5, 1e-3, 0)), 0.0)
    outcomes = feed(refitter, [real, LatencyModel(0, 1e-5, 1e-3, 0)], 300, noise=0.02)
    assert 1 <= len(outcomes) <= 3
    assert refitter.error() < 0.15
    assert refitter.predictor.models[0].a == pytest.approx(real.a, rel=0.3)


def test_attempts_are_no_more_frequent_than_allowed() -> None:
    """Noise that no model can follow: one attempt an interval, whatever the error."""
    rng = np.random.default_rng(1)
    refitter = ChunkRefitter(predictor(HYBRID), 0.0)
    attempts = []
    for i in range(2000):
        seconds = HYBRID.seconds(0, 512) * np.exp(rng.normal(0, 2.0))
        if refitter.observe([(0, 512)], [seconds], i * 0.1) is not None:
            attempts.append(i * 0.1)
    assert attempts and min(np.diff(attempts)) >= LIMITS.interval_s


@pytest.mark.parametrize(
    "rows, seconds",
    [([(0, 64), (0, 64)], [1.0]), ([], [1.0]), ([(0, 64)], [0.0]), ([(0, 64)], [1.0, 1.0])],
)
def test_what_says_nothing_about_one_chunk_is_no_sample(rows, seconds) -> None:
    refitter = ChunkRefitter(predictor(HYBRID), 0.0)
    for i in range(100):
        assert refitter.observe(rows, seconds, float(i)) is None
    assert refitter.error() is None


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 60000), st.integers(1, 4096), st.floats(1e-5, 10.0)),
        min_size=1,
        max_size=64,
    )
)
def test_a_refit_is_never_worse_and_never_negative(chunks: list[tuple[int, int, float]]) -> None:
    samples = [[LatencySample(*chunk) for chunk in chunks]]
    outcome = refit(predictor(HYBRID), samples)
    assert outcome.error_before == prediction_error([HYBRID], samples)
    if outcome.predictor is None:
        return
    assert outcome.error_after < outcome.error_before
    (model,) = outcome.predictor.models
    assert min(model.a, model.b, model.c, model.g) >= 0
    size = outcome.predictor.predict_next_chunk_size(1000)
    assert 64 <= size <= 8192 and size % 64 == 0


def test_the_scheduler_follows_a_new_model(caplog: pytest.LogCaptureFixture) -> None:
    """Through the scheduler: the fake stage answers in 1 ms, the model had said one second."""
    harness = Harness(Shape(hybrid=False), chunked_prefill_size=16)
    scheduler = harness.scheduler
    wrong = ChunkSizePredictor((LatencyModel(1e-9, 1e-3, 1.0, 0.0),), 16, 1, 64, 0.75)
    scheduler.chunk_predictor = wrong
    scheduler.planner.budget = DynamicChunkBudget(wrong)
    limits = RefitLimits(min_samples=8, interval_s=0.0)
    scheduler.chunk_refitter = ChunkRefitter(wrong, 0.0, limits)
    caplog.set_level("INFO")
    harness.add("r", list(range(1, 90)) * 2, 2)
    harness.run()
    assert harness.finished["r"].type == "length"
    assert scheduler.chunk_predictor is scheduler.chunk_refitter.predictor is not wrong
    assert scheduler.chunking_report["num_refits"] == scheduler.chunk_refitter.num_refits >= 1
    assert scheduler.planner.budget.predictor is scheduler.chunk_predictor
    assert any("Predictions were off by" in r.message for r in caplog.records)
