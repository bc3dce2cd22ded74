"""Rotary position embedding (arXiv:2104.09864), on part of each head, and how it is stretched."""

from __future__ import annotations

import math
from typing import Any, Protocol

import torch

from sglang.srt.kernels.registry import get_op


class Rope(Protocol):
    """What a model's config says of its rotations (`models/rope_config.py`)."""

    @property
    def theta(self) -> float:
        """Base wavelength."""

    @property
    def rotary_dim(self) -> int:
        """Values of a head that are rotated."""

    @property
    def kind(self) -> str:
        """How the frequencies are changed for longer contexts."""

    @property
    def parameters(self) -> dict[str, Any]:
        """Numbers of that change."""


class RotaryEmbedding:
    """Rotates the first values of each head, halves as pairs (NeoX style)."""

    def __init__(self, rope: Rope, device: str) -> None:
        self._frequencies = frequencies(rope).to(device)
        self._amplitude = amplitude(rope)
        self._op = get_op("rotary", device)

    def cos_sin(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Tables of a step, shared by its layers: positions [tokens] to two [tokens, pairs]."""
        angles = positions.float().unsqueeze(-1) * self._frequencies
        cos, sin = angles.cos(), angles.sin()
        if self._amplitude != 1.0:
            cos, sin = cos * self._amplitude, sin * self._amplitude
        return cos, sin

    def apply(self, x: torch.Tensor, cos_sin: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """x: [tokens, heads, head_dim], rotated."""
        result: torch.Tensor = self._op(x, *cos_sin)
        return result


def frequencies(rope: Rope) -> torch.Tensor:
    """Angle a position of each pair: [rotary_dim / 2] in fp32, as models were trained with."""
    steps = torch.arange(0, rope.rotary_dim, 2, dtype=torch.int64).float()
    plain = 1.0 / (rope.theta ** (steps / rope.rotary_dim))
    given = rope.parameters
    if rope.kind == "linear":
        return plain / given["factor"]
    if rope.kind == "llama3":
        return _llama3(plain, given)
    if rope.kind == "yarn":
        return _yarn(plain, rope)
    return plain


def amplitude(rope: Rope) -> float:
    """What cosines and sines are multiplied by: the temperature of YaRN (arXiv:2309.00071)."""
    if rope.kind != "yarn":
        return 1.0
    given = rope.parameters
    if given.get("attention_factor") is not None:
        return float(given["attention_factor"])
    mscale, mscale_all = given.get("mscale"), given.get("mscale_all_dim")
    if mscale and mscale_all:
        return _temperature(given["factor"], mscale) / _temperature(given["factor"], mscale_all)
    return _temperature(given["factor"], 1.0)


def _temperature(factor: float, scale: float) -> float:
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _llama3(plain: torch.Tensor, given: dict[str, Any]) -> torch.Tensor:
    """Llama 3.1: long wavelengths are stretched, short ones kept, those between mixed."""
    turns = given["original_max_position_embeddings"] * plain / (2 * math.pi)
    low, high = given["low_freq_factor"], given["high_freq_factor"]
    kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return kept * plain + (1 - kept) * plain / given["factor"]


def _yarn(plain: torch.Tensor, rope: Rope) -> torch.Tensor:
    """NTK by parts (arXiv:2309.00071, section 3.2): pairs that turn often are kept."""
    given = rope.parameters
    context = given["original_max_position_embeddings"]

    def pair_with(turns: float) -> float:
        logarithm = math.log(context / (turns * 2 * math.pi))
        return rope.rotary_dim * logarithm / (2 * math.log(rope.theta))

    low, high = pair_with(given.get("beta_fast") or 32), pair_with(given.get("beta_slow") or 1)
    if given.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.rotary_dim - 1)
    pairs = torch.arange(len(plain), dtype=torch.float32)
    stretched = ((pairs - low) / max(high - low, 1e-3)).clamp(0.0, 1.0)
    return plain * (1 - stretched) + plain / given["factor"] * stretched
