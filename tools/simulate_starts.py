"""Many simulated server starts: does dynamic chunking come up, and how well does it predict?

    python tools/simulate_starts.py [--starts 200] [--out benchmark/results/simulated_starts.txt]

Each start measures a stage whose true latency is known, with multiplicative noise, in two ways:

* here: the requests, the stopping rule and the fit of `chunk_sizer` (several prefixes, all
  coefficients at least 0);
* quadratic: f(l) = a l^2 + b l + c by least squares through 128 whole prompts of evenly spaced
  lengths up to 1.25 chunks, switched off when a <= 0. A chunk of x after L is predicted as
  f(L + x) - f(L) + c.

"off": share of the starts after which dynamic chunking is switched off. "error": median over starts
and chunks of |predicted / true - 1|, of the starts that are not off.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))

from sglang.srt.managers.chunk_sizer import (
    FitError,
    LatencyModel,
    LatencySample,
    fit_latency_model,
    profile_requests,
    well_determined,
)

BASE = 512
MIN_REQUESTS, MAX_REQUESTS = 12, 128
STAGES = {
    "linear only": LatencyModel(a=0.0, b=2e-4, c=3e-3, g=0.0),
    "weak attention": LatencyModel(a=2e-9, b=2e-4, c=3e-3, g=1e-8),
    "attention only": LatencyModel(a=1e-7, b=1e-4, c=2e-3, g=2e-7),
}
CHUNKS = ((0, 512), (2048, 384), (8192, 256), (32768, 128))  # (prefix, length) to predict


@dataclass(frozen=True)
class Start:
    """One simulated start: relative errors at `CHUNKS`, None when switched off."""

    errors: list[float] | None
    num_samples: int


def start_here(stage: LatencyModel, noise: float, rng: np.random.Generator) -> Start:
    """Profile and fit as the scheduler does."""
    samples: list[LatencySample] = []
    requests = profile_requests(BASE, 16 * BASE, 16 * BASE, MAX_REQUESTS)
    for done, request in enumerate(requests, start=1):
        prefix = 0
        for count in request.chunks:
            seconds = stage.seconds(prefix, count) * np.exp(rng.normal(0, noise))
            samples.append(LatencySample(prefix, count, float(seconds)))
            prefix += count
        if done >= MIN_REQUESTS and well_determined([samples]):
            break
    try:
        model = fit_latency_model(samples)
    except FitError:
        return Start(None, len(samples))
    errors = [abs(model.seconds(*c) / stage.seconds(*c) - 1) for c in CHUNKS]
    return Start(errors, len(samples))


def start_quadratic(stage: LatencyModel, noise: float, rng: np.random.Generator) -> Start:
    """Whole prompts, a quadratic, off when it does not bend upwards."""
    lengths = np.linspace(1.25 * BASE / 128, 1.25 * BASE, 128).round()
    exact = np.array([stage.seconds(0, length) for length in lengths])
    seconds = exact * np.exp(rng.normal(0, noise, 128))
    a, b, c = np.polyfit(lengths, seconds, 2)
    if a <= 0:
        return Start(None, 128)
    errors = []
    for prefix, count in CHUNKS:
        predicted = a * ((prefix + count) ** 2 - prefix**2) + b * count + c
        errors.append(float(abs(predicted / stage.seconds(prefix, count) - 1)))
    return Start(errors, 128)


def summary(starts: list[Start]) -> str:
    """Off, error, samples."""
    errors = [e for start in starts if start.errors is not None for e in start.errors]
    off = sum(start.errors is None for start in starts) / len(starts)
    error = f"{median(errors):8.1%}" if errors else "       -"
    return f"{off:8.1%} {error} {median(s.num_samples for s in starts):8.0f}"


def report(num_starts: int) -> str:
    """The table."""
    columns = f"{'off':>8} {'error':>8} {'samples':>8}"
    lines = [
        f"{num_starts} starts each, base chunk {BASE}; chunks predicted: "
        + ", ".join(f"{x} after {p}" for p, x in CHUNKS),
        "",
        f"{'':<16} {'noise':>5}  {'here':^26}  {'quadratic, whole prompts':^26}",
        f"{'':<16} {'':>5}  {columns}  {columns}",
    ]
    for name, stage in STAGES.items():
        for noise in (0.02, 0.10):
            rngs = [np.random.default_rng(seed) for seed in range(num_starts)]
            here = [start_here(stage, noise, rng) for rng in rngs]
            other = [start_quadratic(stage, noise, rng) for rng in rngs]
            lines.append(f"{name:<16} {noise:>5.0%}  {summary(here)}  {summary(other)}")
    return "\n".join(lines)


def main() -> None:
    """Simulate, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--starts", type=int, default=200)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    text = report(arguments.starts)
    print(text)
    if arguments.out:
        command = f"command: python tools/simulate_starts.py --starts {arguments.starts}"
        arguments.out.write_text(f"{command}\n{text}\n")


if __name__ == "__main__":
    main()
