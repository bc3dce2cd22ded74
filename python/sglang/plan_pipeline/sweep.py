"""All the ways to run a profile that were asked for, simulated, and the best of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from sglang.plan_pipeline.lengths import PromptLengths
from sglang.plan_pipeline.profile import PipelineProfile, ProfileError
from sglang.plan_pipeline.simulator import SimConfig, SimRequest, SimResult, simulate

OBJECTIVES = ("ttft", "throughput")
TIE = 0.01  # a difference below this is not worth a stage, or a smaller chunk


@dataclass(frozen=True)
class PlanRequest:
    """What to try. smooth_factors are those of dynamic chunks; static ones are always tried."""

    lengths: PromptLengths
    pp_sizes: tuple[int, ...]
    chunk_sizes: tuple[int, ...]
    smooth_factors: tuple[float, ...]
    num_requests: int = 8  # of the burst that throughput is taken from
    output_len: int = 1
    page_size: int = 1
    max_prefill_tokens: int = 16384
    cores: int | None = None
    mixed_chunk: bool = False


@dataclass(frozen=True)
class PlanRow:
    """One way to run the server, and what to expect of it.

    ttft_s, bubble, num_chunks: of one prompt alone, one entry a length. The rest: of a burst of
    all requests at once.
    """

    pp_size: int
    chunk_size: int
    smooth: float | None
    ttft_s: tuple[float, ...]
    bubble: tuple[float, ...]
    num_chunks: tuple[int, ...]
    tokens_per_s: float
    burst_bubble: float
    burst_ttft_mean_s: float

    @property
    def mean_ttft_s(self) -> float:
        """Over the lengths."""
        return sum(self.ttft_s) / len(self.ttft_s)

    @property
    def mode(self) -> str:
        """ "static", or "dynamic" with its smooth factor."""
        return "static" if self.smooth is None else f"dynamic {self.smooth:g}"

    def cost(self, objective: str) -> float:
        """What is to be small."""
        return self.mean_ttft_s if objective == "ttft" else 1 / self.tokens_per_s

    def flags(self) -> str:
        """How to start the server this way."""
        text = f"--pp-size {self.pp_size} --chunked-prefill-size {self.chunk_size}"
        if self.smooth is None:
            return text
        variable = f"SGLANG_DYNAMIC_CHUNKING_SMOOTH_FACTOR={self.smooth:g} "
        return variable + text + " --enable-dynamic-chunking"

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "mode": self.mode, "flags": self.flags()}


@dataclass
class Plan:
    """The result of a sweep. `skipped`: stages that the model cannot be cut into, and why."""

    lengths: tuple[int, ...]
    rows: list[PlanRow] = field(default_factory=list)
    skipped: dict[int, str] = field(default_factory=dict)

    def best(self, objective: str, pp_size: int | None = None) -> PlanRow:
        """The best row, of one number of stages or of all.

        Of rows that differ by less than 1 % the one with the fewest stages, then static chunks,
        then the largest chunk is taken.
        """
        rows = [row for row in self.rows if pp_size in (None, row.pp_size)]
        least = min(row.cost(objective) for row in rows)
        close = [row for row in rows if row.cost(objective) <= least * (1 + TIE)]
        return min(
            close,
            key=lambda r: (r.pp_size, r.smooth is not None, -r.chunk_size, r.cost(objective)),
        )

    def pp_sizes(self) -> list[int]:
        """Numbers of stages that were simulated."""
        return list(dict.fromkeys(row.pp_size for row in self.rows))

    def efficiency(self, row: PlanRow, objective: str) -> float:
        """Speed-up over the fewest stages, over the ratio of stages: 1 is perfect scaling."""
        first = self.best(objective, self.pp_sizes()[0])
        return first.cost(objective) * first.pp_size / (row.cost(objective) * row.pp_size)


def sweep(profile: PipelineProfile, request: PlanRequest) -> Plan:
    """Simulate everything. Raises ProfileError when no number of stages is possible."""
    plan = Plan(request.lengths.shown())
    for pp_size in request.pp_sizes:
        try:
            profile.divided(pp_size)
        except ProfileError as error:
            plan.skipped[pp_size] = str(error)
            continue
        plan.rows += [run(request, config) for config in _configs(profile, request, pp_size)]
    if not plan.rows:
        raise ProfileError("; ".join(dict.fromkeys(plan.skipped.values())))
    return plan


def _configs(profile: PipelineProfile, request: PlanRequest, pp_size: int) -> Iterator[SimConfig]:
    factors: Sequence[float | None] = (None, *request.smooth_factors)
    for chunk_size in request.chunk_sizes:
        for smooth in factors if pp_size > 1 else (None,):
            yield SimConfig(
                models=profile.divided(pp_size),
                chunk_size=chunk_size,
                smooth=smooth,
                has_states=profile.has_states(),
                page_size=request.page_size,
                max_prefill_tokens=max(request.max_prefill_tokens, chunk_size),
                mixed_chunk=request.mixed_chunk,
                link=profile.link,
                activation_bytes_per_token=profile.activation_bytes_per_token,
                cores=request.cores,
                step_overhead_s=profile.step_overhead_s,
                request_overhead_s=profile.request_overhead_s,
            )


def run(request: PlanRequest, config: SimConfig) -> PlanRow:
    """One way: each length alone, then all requests at once."""
    lone = [simulate(config, [SimRequest(n)]) for n in request.lengths.shown()]
    burst = _burst(request, config) if request.num_requests > 1 else lone[-1]
    return PlanRow(
        config.pp_size,
        config.chunk_size,
        config.smooth,
        tuple(result.time_to_first_token_s[0] for result in lone),
        tuple(result.bubble_fraction for result in lone),
        tuple(len(result.chunks) for result in lone),
        burst.prompt_tokens_per_s,
        burst.bubble_fraction,
        sum(burst.time_to_first_token_s) / len(burst.time_to_first_token_s),
    )


def _burst(request: PlanRequest, config: SimConfig) -> SimResult:
    lengths = request.lengths.sample(request.num_requests)
    return simulate(config, [SimRequest(n, 0.0, request.output_len) for n in lengths])
