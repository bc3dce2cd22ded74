"""What a pipeline is made of, as numbers: stage times, layers, links."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sglang.srt.distributed.layer_split import split_layers
from sglang.srt.managers.chunk_sizer import LatencyModel

ATTENTION, LINEAR = "attention", "linear"
COEFFICIENTS = ("a", "b", "c", "g")


class ProfileError(ValueError):
    """A profile that cannot be used; one line that names the field and what is wrong with it."""


@dataclass(frozen=True)
class Link:
    """The way from one stage to the next (and from the last one back to the first)."""

    latency_s: float = 0.0
    bytes_per_s: float = float("inf")

    def seconds(self, num_bytes: float) -> float:
        """Time that a message occupies the sender's side of the link."""
        return num_bytes / self.bytes_per_s


@dataclass(frozen=True)
class PipelineProfile:
    """Measured or given stages, and how the model is cut for other numbers of stages.

    layers: kind of each layer ("attention" or "linear"), empty when unknown; then only the number
    of stages that was measured can be planned. step_overhead_s: what stage 0 spends on a
    micro-batch outside its layers. request_overhead_s: what the front end adds to a request.
    """

    stages: tuple[LatencyModel, ...]
    layers: tuple[str, ...] = ()
    link: Link = field(default_factory=Link)
    activation_bytes_per_token: float = 0.0
    step_overhead_s: float = 0.0
    request_overhead_s: float = 0.0
    base_chunk_size: int | None = None

    def total(self) -> LatencyModel:
        """The whole model on one stage: the sum of all stages."""
        a, b, c, g = (sum(getattr(s, name) for s in self.stages) for name in COEFFICIENTS)
        return LatencyModel(a, b, c, g)

    def divided(self, pp_size: int) -> tuple[LatencyModel, ...]:
        """Latency models of `pp_size` stages; the measured ones where their number is the same.

        Else the total is divided as the server divides layers: what the prefix costs (a, g) goes
        with the attention layers, the rest (b, c) equally with all layers. Raises ProfileError
        when the layers are unknown or fewer than stages.
        """
        if pp_size == len(self.stages):
            return self.stages
        if not self.layers:
            raise ProfileError(
                f"'layers' is needed to plan --pp-size {pp_size}: the profile has "
                f"{len(self.stages)} stage(s) and does not say of which layers"
            )
        try:
            ranges = split_layers([1.0] * len(self.layers), pp_size)
        except ValueError as error:
            raise ProfileError(str(error)) from error
        total, count = self.total(), len(self.layers)
        attention = [kind == ATTENTION for kind in self.layers]
        return tuple(
            _share(total, (end - start) / count, _ratio(attention[start:end], attention))
            for start, end in ranges
        )

    def has_states(self) -> bool:
        """Whether the model has recurrent layers (their states set the grid of chunk ends)."""
        return LINEAR in self.layers


def _ratio(part: Sequence[bool], whole: Sequence[bool]) -> float:
    return sum(part) / sum(whole) if any(whole) else len(part) / len(whole)


def _share(total: LatencyModel, of_layers: float, of_attention: float) -> LatencyModel:
    return LatencyModel(
        total.a * of_attention, total.b * of_layers, total.c * of_layers, total.g * of_attention
    )


def read_profile(path: Path) -> PipelineProfile:
    """Read a profile, or a saved `/server_info` answer. Raises ProfileError."""
    try:
        found = json.loads(path.read_text())
    except OSError as error:
        raise ProfileError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise ProfileError(f"{path} is not JSON: {error}") from error
    return parse_profile(found)


def parse_profile(raw: Any) -> PipelineProfile:
    """A profile from JSON (see docs/planning.md). Raises ProfileError naming the field."""
    if not isinstance(raw, Mapping):
        raise ProfileError("a profile is a JSON object")
    chunking = raw.get("dynamic_chunking", raw)
    stages = chunking.get("stages") if isinstance(chunking, Mapping) else None
    if stages is None and "total" in raw:
        stages = [raw["total"]]
    if not isinstance(stages, list) or not stages:
        reason = chunking.get("reason") if isinstance(chunking, Mapping) else None
        because = f" (dynamic chunking was off: {reason})" if reason else ""
        raise ProfileError(f"'stages' must be a list of coefficients, or 'total' given{because}")
    link = raw.get("link", {})
    if not isinstance(link, Mapping):
        raise ProfileError("'link' must be an object with 'latency_s' and 'bytes_per_s'")
    base = chunking.get("base_chunk_size")
    return PipelineProfile(
        stages=tuple(_model(stage, f"stages[{i}]") for i, stage in enumerate(stages)),
        layers=parse_layers(raw.get("layers", [])),
        link=Link(
            _number(link, "latency_s", "link.", 0.0),
            _number(link, "bytes_per_s", "link.", float("inf"), positive=True),
        ),
        activation_bytes_per_token=_number(raw, "activation_bytes_per_token", "", 0.0),
        step_overhead_s=_number(raw, "step_overhead_s", "", 0.0),
        request_overhead_s=_number(raw, "request_overhead_s", "", 0.0),
        base_chunk_size=base if isinstance(base, int) else None,
    )


def parse_layers(raw: Any) -> tuple[str, ...]:
    """Layer kinds from a list of names, or from letters such as "LLLA" (L linear, A attention)."""
    letters = {"L": LINEAR, "A": ATTENTION}
    names = [letters.get(c.upper(), c) for c in raw] if isinstance(raw, str) else raw
    if not isinstance(names, list):
        raise ProfileError("'layers' must be a list of 'attention' and 'linear', or text like LLLA")
    for name in names:
        if name not in (ATTENTION, LINEAR):
            raise ProfileError(f"'layers' holds {name!r}; 'attention' and 'linear' are known")
    return tuple(names)


def _model(raw: Any, name: str) -> LatencyModel:
    if not isinstance(raw, Mapping):
        raise ProfileError(f"'{name}' must be an object with a, b, c and g")
    values = [_number(raw, key, f"{name}.", 0.0) for key in COEFFICIENTS]
    if not any(values):
        raise ProfileError(f"'{name}' has no coefficient above 0")
    a, b, c, g = values
    return LatencyModel(a, b, c, g)


def _number(
    raw: Mapping[str, Any], key: str, prefix: str, default: float, positive: bool = False
) -> float:
    value = raw.get(key, default)
    ok = isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0
    if not ok or (positive and value == 0):
        bound = "above 0" if positive else "at least 0"
        raise ProfileError(f"'{prefix}{key}' must be a number {bound}, got {value!r}")
    return float(value)
