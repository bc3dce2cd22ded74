"""Fitting the latency model again when live timings leave it behind: pure, the clock is given.

Start-up profiling sees an idle machine. Under load stages compete for memory and cores, clocks
throttle, neighbours come and go; a model that was right then may mislead later. Chunk sizes depend
on the shape of t(L, x) only, so that a machine that is slower all over changes nothing but the
predicted times.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from sglang.srt.managers.chunk_sizer import (
    ChunkSizePredictor,
    FitError,
    LatencyModel,
    LatencySample,
    fit_latency_model,
)

StageSamples = Sequence[LatencySample]

# Where the old model is sampled to hold the new one in place: multiples of the base chunk.
_ANCHOR_PREFIXES = (0.0, 8.0)
_ANCHOR_LENGTHS = (0.25, 1.0)


@dataclass(frozen=True)
class RefitLimits:
    """When to fit again. Times in seconds, lengths in micro-batches."""

    error_bound: float = 0.25  # median of |predicted / measured - 1|
    window: int = 64  # timings kept; a new model is fitted to these
    min_samples: int = 32  # the error is that of so many, all since the last attempt
    interval_s: float = 30.0  # least time between two attempts


@dataclass(frozen=True)
class Refit:
    """The outcome of an attempt. `predictor` is None when a new fit would not be better."""

    error_before: float
    error_after: float
    num_samples: int
    predictor: ChunkSizePredictor | None


def prediction_error(models: Sequence[LatencyModel], samples: Sequence[StageSamples]) -> float:
    """Median of |predicted / measured - 1| of the slowest stage's time, over micro-batches.

    samples: [stage][micro-batch], the same micro-batches on every stage.
    """
    errors = []
    for chunk in zip(*samples, strict=True):
        predicted = max(
            m.seconds(s.prefix_len, s.num_tokens) for m, s in zip(models, chunk, strict=True)
        )
        errors.append(abs(predicted / max(s.seconds for s in chunk) - 1))
    return float(median(errors))


def refit_stage(old: LatencyModel, live: StageSamples, base: int) -> LatencyModel:
    """One stage's model from live samples, held by the old model's shape.

    Live chunks of a few lengths cannot tell all coefficients apart. The old model's own times at
    four places, scaled by the median ratio of measured to predicted, stand in where no live
    sample speaks. Raises FitError as `fit_latency_model` does.
    """
    ratio = median(s.seconds / old.seconds(s.prefix_len, s.num_tokens) for s in live)
    anchors = []
    for prefix in _ANCHOR_PREFIXES:
        for length in _ANCHOR_LENGTHS:
            start, count = int(prefix * base), max(1, int(length * base))
            anchors.append(LatencySample(start, count, ratio * old.seconds(start, count)))
    fitted = fit_latency_model([*live, *anchors])
    errors = [abs(fitted.seconds(s.prefix_len, s.num_tokens) / s.seconds - 1) for s in live]
    return replace(fitted, mape=median(errors), num_samples=len(live))


def refit(predictor: ChunkSizePredictor, samples: Sequence[StageSamples]) -> Refit:
    """Fit every stage to live samples; the result is taken only when it lowers the error."""
    before = prediction_error(predictor.models, samples)
    try:
        models = tuple(
            refit_stage(model, live, predictor.base)
            for model, live in zip(predictor.models, samples, strict=True)
        )
    except FitError:
        return Refit(before, before, len(samples[0]), None)
    after = prediction_error(models, samples)
    better = replace(predictor, models=models) if after < before else None
    return Refit(before, after, len(samples[0]), better)


class ChunkRefitter:
    """Keeps the latest timings of prompt chunks and says when they call for another model."""

    def __init__(
        self, predictor: ChunkSizePredictor, now: float, limits: RefitLimits = RefitLimits()
    ) -> None:
        self.predictor = predictor
        self.num_refits = 0
        self._limits = limits
        self._samples: tuple[deque[LatencySample], ...] = tuple(
            deque(maxlen=limits.window) for _ in predictor.models
        )
        self._num_new = 0
        self._last_attempt = now

    def observe(
        self, rows: Sequence[tuple[int, int]], stage_seconds: Sequence[float], now: float
    ) -> Refit | None:
        """Take in one micro-batch; an attempt to fit again if it was time for one.

        rows: (prefix_len, num_tokens) of prompt chunks, no decode rows. Only micro-batches of one
        row make samples: the time of several together says little about each.
        """
        if len(rows) != 1 or len(stage_seconds) != len(self._samples) or min(stage_seconds) <= 0:
            return None
        ((prefix_len, num_tokens),) = rows
        for kept, seconds in zip(self._samples, stage_seconds, strict=True):
            kept.append(LatencySample(prefix_len, num_tokens, seconds))
        self._num_new += 1
        limits = self._limits
        if self._num_new < limits.min_samples or now - self._last_attempt < limits.interval_s:
            return None
        recent = [list(kept)[-limits.min_samples :] for kept in self._samples]
        if prediction_error(self.predictor.models, recent) <= limits.error_bound:
            return None
        since = [list(kept)[-self._num_new :] for kept in self._samples]
        self._last_attempt, self._num_new = now, 0
        outcome = refit(self.predictor, since)
        if outcome.predictor is not None:
            self.predictor = outcome.predictor
            self.num_refits += 1
        return outcome

    def error(self) -> float | None:
        """Median error of the current model on the timings kept; None without timings."""
        if not self._samples[0]:
            return None
        return prediction_error(self.predictor.models, self._samples)
