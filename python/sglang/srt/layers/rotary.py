"""Rotary position embedding (arXiv:2104.09864), on part of each head."""

from __future__ import annotations

import torch

from sglang.srt.kernels.registry import get_op


class RotaryEmbedding:
    """Rotates the first `rotary_dim` values of each head, halves as pairs (NeoX style)."""

    def __init__(self, theta: float, rotary_dim: int, device: str) -> None:
        steps = torch.arange(0, rotary_dim, 2, dtype=torch.int64).float()
        self._frequencies = (1.0 / (theta ** (steps / rotary_dim))).to(device)
        self._op = get_op("rotary", device)

    def cos_sin(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Tables of a step, shared by its layers: positions [tokens] to two [tokens, dim / 2]."""
        angles = positions.float().unsqueeze(-1) * self._frequencies
        return angles.cos(), angles.sin()

    def apply(self, x: torch.Tensor, cos_sin: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """x: [tokens, heads, head_dim], rotated."""
        result: torch.Tensor = self._op(x, *cos_sin)
        return result
