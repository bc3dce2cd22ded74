"""Rotary position embedding (arXiv:2104.09864), on part of each head."""

from __future__ import annotations

from typing import Any

import torch


class RotaryEmbedding:
    """Rotates the first `rotary_dim` values of each head, halves as pairs (NeoX style).

    Text positions are the same in all sections of Qwen's multimodal rope, so that it is plain rope
    here. Raises ValueError on a rope type that is not supported.
    """

    def __init__(self, config: dict[str, Any], head_dim: int, device: str) -> None:
        parameters = config.get("rope_parameters") or config.get("rope_scaling") or {}
        kind = parameters.get("rope_type", parameters.get("type", "default"))
        if kind not in ("default", "mrope"):
            raise ValueError(f"rope type {kind!r} is not supported; supported is 'default'")
        theta = parameters.get("rope_theta", config.get("rope_theta", 10000.0))
        share = parameters.get("partial_rotary_factor", config.get("partial_rotary_factor", 0.25))
        self.rotary_dim = int(head_dim * share)
        steps = torch.arange(0, self.rotary_dim, 2, dtype=torch.int64).float()
        self._frequencies = (1.0 / (theta ** (steps / self.rotary_dim))).to(device)

    def cos_sin(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Tables of a step, shared by its layers: positions [tokens] to two [tokens, rotary_dim]."""
        angles = positions.float().unsqueeze(-1) * self._frequencies
        angles = torch.cat([angles, angles], dim=-1)
        return angles.cos(), angles.sin()

    def apply(self, x: torch.Tensor, cos_sin: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """x: [tokens, heads, head_dim], rotated."""
        cos, sin = (table.unsqueeze(1) for table in cos_sin)
        turned, rest = x[..., : self.rotary_dim], x[..., self.rotary_dim :]
        half = self.rotary_dim // 2
        across = torch.cat([-turned[..., half:], turned[..., :half]], dim=-1)
        return torch.cat([(turned * cos + across * sin).to(x.dtype), rest], dim=-1)
