"""Gated feed-forward layer (SwiGLU, arXiv:2002.05202)."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from sglang.srt.layers.linear import Linear, MergedLinear, Targets, WeightFactory


class GatedMLP:
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, hidden_size: int, intermediate_size: int, factory: WeightFactory) -> None:
        self._gate_up = MergedLinear(
            hidden_size, [("gate_proj", intermediate_size), ("up_proj", intermediate_size)], factory
        )
        self._down = Linear("down_proj", intermediate_size, hidden_size, factory)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[tokens, hidden] to the same."""
        gate, up = self._gate_up.split(self._gate_up.forward(x))
        return self._down.forward(F.silu(gate) * up)

    def targets(self, prefix: str) -> Targets:
        """Where the checkpoint's tensors go."""
        return {**self._gate_up.targets(prefix), **self._down.targets(prefix)}
