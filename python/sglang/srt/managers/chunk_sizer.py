"""Prefill chunk sizes from a measured latency model: pure (numpy and scipy only).

A chunk of x tokens after L cached ones takes, on one stage,

    t(L, x) = c + g L + b x + a (2 L x + x^2),    a, b, c, g >= 0

a: attention over the prefix and inside the chunk; b: everything linear in the chunk (projections,
recurrent layers); c: cost of a step; g: what the prefix costs by itself (gathering, page tables).
All are non-negative, so that a stage without attention simply has a = 0. The fit is non-negative
least squares (Lawson and Hanson 1974, as in scipy.optimize.nnls) on relative errors, reweighted
after Huber (1964) against disturbed samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

from sglang.srt.managers.schedule_policy import align_down

FloatArray = npt.NDArray[np.float64]

MIN_SAMPLES = 8
MIN_DISTINCT_LENGTHS = 3
HUBER_ROUNDS = 8
HUBER_WIDTH = 1.345  # in units of the robust standard deviation: 95 % efficiency on clean data


@dataclass(frozen=True)
class LatencySample:
    """One measured chunk on one stage."""

    prefix_len: int
    num_tokens: int
    seconds: float


@dataclass(frozen=True)
class LatencyModel:
    """Coefficients of t(L, x) of one stage, in seconds, and how well they fit."""

    a: float
    b: float
    c: float
    g: float
    mape: float = 0.0  # median absolute relative error of the samples it was fitted to
    num_samples: int = 0

    def seconds(self, prefix_len: float, num_tokens: float) -> float:
        """Predicted time of a chunk."""
        return self.c + self.added(prefix_len, num_tokens)

    def added(self, prefix_len: float, num_tokens: float) -> float:
        """What a row adds to a micro-batch that runs anyway: t without the cost of a step."""
        x = num_tokens
        return self.g * prefix_len + self.b * x + self.a * (2 * prefix_len * x + x * x)

    def tokens_within(self, seconds: float, prefix_len: float) -> float:
        """The x for which `added(prefix_len, x)` equals `seconds`; 0 when the prefix takes it all.

        Infinite when tokens cost nothing (a = b = 0).
        """
        rest = seconds - self.g * prefix_len
        slope = self.b + 2 * self.a * prefix_len
        if rest <= 0:
            return 0.0
        if self.a <= 0:
            return rest / slope if slope > 0 else float("inf")
        # The positive root of a x^2 + slope x - rest, in the form that does not cancel.
        return 2 * rest / (slope + math.sqrt(slope * slope + 4 * self.a * rest))


class FitError(ValueError):
    """The samples do not determine a model; the message says why."""


def fit_latency_model(samples: Sequence[LatencySample]) -> LatencyModel:
    """Fit t(L, x) to samples of one stage. Raises FitError when there are too few to do so."""
    lengths = {s.num_tokens for s in samples}
    if len(samples) < MIN_SAMPLES or len(lengths) < MIN_DISTINCT_LENGTHS:
        raise FitError(
            f"{len(samples)} samples of {len(lengths)} distinct lengths; at least {MIN_SAMPLES} "
            f"of {MIN_DISTINCT_LENGTHS} are needed"
        )
    prefix = np.array([s.prefix_len for s in samples], dtype=np.float64)
    x = np.array([s.num_tokens for s in samples], dtype=np.float64)
    seconds = np.array([s.seconds for s in samples], dtype=np.float64)
    if not np.all(np.isfinite(seconds)) or np.any(seconds <= 0):
        raise FitError("a measured time is not positive")
    columns = np.stack([2 * prefix * x + x * x, x, np.ones_like(x), prefix], axis=1)
    relative = columns / seconds[:, None]
    coefficients, residual = _robust_nnls(relative, np.ones_like(x))
    a, b, c, g = (float(v) for v in coefficients)
    return LatencyModel(a, b, c, g, float(np.median(np.abs(residual))), len(samples))


def fit_stages(samples: Sequence[Sequence[LatencySample]]) -> tuple[LatencyModel, ...]:
    """One model a stage."""
    return tuple(fit_latency_model(stage) for stage in samples)


def well_determined(samples: Sequence[Sequence[LatencySample]], tolerance: float = 0.05) -> bool:
    """Whether predictions can be expected to be off by at most `tolerance` on every stage.

    Two standard errors of a prediction: the spread of one sample over the root of the samples
    that each of the four coefficients has for itself.
    """
    try:
        models = fit_stages(samples)
    except FitError:
        return False
    errors = [2 * 1.4826 * m.mape / math.sqrt(m.num_samples / 4) for m in models]
    return max(errors) <= tolerance


def _robust_nnls(matrix: FloatArray, target: FloatArray) -> tuple[FloatArray, FloatArray]:
    scale = np.maximum(np.abs(matrix).max(axis=0), 1e-300)
    weights = np.ones(len(target))
    solution = np.zeros(matrix.shape[1])
    residual = target
    for _ in range(HUBER_ROUNDS):
        root = np.sqrt(weights)
        solution, _ = nnls(matrix / scale * root[:, None], target * root)
        residual = matrix / scale @ solution - target
        spread = 1.4826 * float(np.median(np.abs(residual)))
        if spread <= 1e-12:
            break
        weights = np.minimum(1.0, HUBER_WIDTH * spread / np.maximum(np.abs(residual), 1e-300))
    return solution / scale, residual


@dataclass(frozen=True)
class ChunkSizePredictor:
    """Chunk sizes that keep each micro-batch of a prompt as long as its first one.

    `models` has one entry a stage; the slowest stage counts. `base` is the static chunk size,
    `smooth` in [0, 1] mixes: 0 keeps the static size, 1 follows the model.
    """

    models: tuple[LatencyModel, ...]
    base: int
    grid: int
    max_tokens: int
    smooth: float

    def target_seconds(self, model: LatencyModel) -> float:
        """Time of a first chunk on one stage, without the cost of a step."""
        slowest = max(m.seconds(0, self.base) for m in self.models)
        return slowest - model.c

    def predict_next_chunk_size(self, prefix_len: int, rows: Sequence[tuple[int, int]] = ()) -> int:
        """Tokens of the next row: a multiple of the grid, at least one grid step, within bounds.

        rows: (prefix_len, num_tokens) of the rows that share the micro-batch; 0 when they have
        used it up.
        """
        used = sum(num_tokens for _, num_tokens in rows)
        wanted = min(self._exact(model, prefix_len, rows) for model in self.models)
        static = self.base - used
        mixed = static + self.smooth * (min(wanted, self.max_tokens) - static)
        size = align_down(int(min(mixed, self.max_tokens - used)), self.grid)
        return max(size, 0 if rows else self.grid)

    def _exact(
        self, model: LatencyModel, prefix_len: int, rows: Sequence[tuple[int, int]]
    ) -> float:
        spent = sum(model.added(start, count) for start, count in rows)
        return model.tokens_within(self.target_seconds(model) - spent, prefix_len)

    def seconds(self, rows: Sequence[tuple[int, int]]) -> float:
        """Predicted time of a micro-batch of prompt chunks on the slowest stage."""
        return max(m.c + sum(m.added(start, n) for start, n in rows) for m in self.models)

    def report(self) -> dict[str, object]:
        """What `/server_info` says of it."""
        return {
            "base_chunk_size": self.base,
            "smooth_factor": self.smooth,
            "grid": self.grid,
            "mape": max(m.mape for m in self.models),
            "stages": [asdict(m) for m in self.models],
        }


class StaticChunkBudget:
    """`--chunked-prefill-size` tokens a micro-batch, whatever the prefix.

    At least one step of the grid: a smaller chunk could not end on a page.
    """

    def __init__(self, chunk_size: int | None, max_prefill_tokens: int, grid: int) -> None:
        size = max_prefill_tokens if chunk_size is None else chunk_size
        self._size = max(grid, min(size, max_prefill_tokens))
        self._used = 0

    def start_batch(self) -> None:
        """A new micro-batch begins."""
        self._used = 0

    def next_len(self, prefix_len: int) -> int:
        """Tokens left."""
        return self._size - self._used

    def join_tail(self, num_tokens: int) -> int:
        """A static size is kept to the token."""
        return 0

    def take(self, prefix_len: int, num_tokens: int) -> None:
        """A row was added."""
        self._used += num_tokens


class DynamicChunkBudget:
    """What the latency model leaves of a micro-batch, row by row."""

    def __init__(self, predictor: ChunkSizePredictor) -> None:
        self.predictor = predictor
        self._rows: list[tuple[int, int]] = []

    def start_batch(self) -> None:
        """A new micro-batch begins."""
        self._rows = []

    def next_len(self, prefix_len: int) -> int:
        """Tokens that keep the micro-batch level with a first chunk."""
        return self.predictor.predict_next_chunk_size(prefix_len, self._rows)

    def join_tail(self, num_tokens: int) -> int:
        """Less than half of the chunk before it is not worth a round of its own."""
        return (num_tokens - 1) // 2

    def take(self, prefix_len: int, num_tokens: int) -> None:
        """A row was added."""
        self._rows.append((prefix_len, num_tokens))


@dataclass(frozen=True)
class ProfileRequest:
    """One synthetic prefill request: the lengths of its chunks, run one after another."""

    chunks: tuple[int, ...]

    @property
    def num_tokens(self) -> int:
        """Tokens of the whole request."""
        return sum(self.chunks)


# Fractions of the static chunk size, in eighths: distinct lengths around the sizes that are used.
_EIGHTHS = (8, 4, 2, 6, 1, 10, 3, 7, 5, 9)


def profile_requests(
    base: int, max_tokens: int, max_chunk: int, limit: int
) -> list[ProfileRequest]:
    """Up to `limit` requests that show short and long chunks after short and long prefixes.

    max_tokens: longest request that the pools and the context hold; max_chunk: longest chunk.
    Raises FitError when not even three distinct lengths fit.
    """
    unit = min(base, max_chunk, max_tokens)
    lengths = [max(1, unit * eighths // 8) for eighths in _EIGHTHS]
    lengths = [n for n in dict.fromkeys(lengths) if n <= min(max_chunk, max_tokens)]
    if len(lengths) < MIN_DISTINCT_LENGTHS:
        raise FitError(
            f"only {len(lengths)} distinct chunk lengths fit into {max_tokens} tokens with chunks "
            f"of at most {max_chunk}; {MIN_DISTINCT_LENGTHS} are needed"
        )
    requests = []
    for i in range(limit):
        depth = 1 + (i * 3) % 8  # how many chunks: prefixes up to about eight chunks long
        chunks: list[int] = []
        while len(chunks) < depth:
            length = lengths[(i + 5 * len(chunks)) % len(lengths)]
            if sum(chunks) + length > max_tokens:
                break
            chunks.append(length)
        requests.append(ProfileRequest(tuple(chunks or [lengths[-1]])))
    return requests
