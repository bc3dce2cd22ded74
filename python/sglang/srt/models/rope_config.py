"""Rotary embeddings as configs describe them (no torch)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Config = dict[str, Any]

# Rope types, and the fields that each must have. Qwen's multimodal "mrope" has the same position in
# all of its sections for text, which makes it plain rope.
ROPE_TYPES: dict[str, tuple[str, ...]] = {
    "default": (),
    "mrope": (),
    "linear": ("factor",),
    "llama3": (
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
    ),
    "yarn": ("factor",),
}


@dataclass(frozen=True)
class RopeSettings:
    """Rotary embedding (arXiv:2104.09864) of a model.

    theta: base wavelength; rotary_dim: values of a head that are rotated; kind: one of ROPE_TYPES;
    parameters: what the config says of the kind.
    """

    theta: float
    rotary_dim: int
    kind: str
    parameters: Config


def rope_settings(config: Config) -> RopeSettings:
    """Read `rope_parameters`, or `rope_scaling`, `rope_theta` and `partial_rotary_factor` of older
    configs.

    Raises ValueError on a rope type that is not supported, or a field of it that is missing.
    """
    parameters: Config = {
        **(config.get("rope_scaling") or {}),
        **(config.get("rope_parameters") or {}),
    }
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind not in ROPE_TYPES:
        known = ", ".join(repr(name) for name in ROPE_TYPES)
        raise ValueError(f"rope_type {kind!r} is not supported; supported: {known}")
    if kind == "yarn" and not parameters.get("original_max_position_embeddings"):
        parameters["original_max_position_embeddings"] = config.get("max_position_embeddings")
    for name in ROPE_TYPES[kind]:
        value = parameters.get(name)
        if not isinstance(value, (int, float)) or value <= 0:
            raise ValueError(f"rope_type {kind!r} needs a positive {name}, got {value!r}")
    theta: Any = parameters.get("rope_theta", config.get("rope_theta", 10000.0))
    share: Any = parameters.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    rotary_dim = int(config["head_dim"] * share)
    if rotary_dim % 2 or not 0 < rotary_dim <= config["head_dim"]:
        raise ValueError(f"partial_rotary_factor {share} rotates {rotary_dim} values of a head")
    return RopeSettings(float(theta), rotary_dim, str(kind), parameters)
