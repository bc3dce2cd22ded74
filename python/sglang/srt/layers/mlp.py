"""Gated feed-forward layer (SwiGLU, arXiv:2002.05202)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from sglang.srt.kernels.reference.pointwise import relu_squared
from sglang.srt.kernels.registry import get_op
from sglang.srt.layers.linear import Linear, MergedLinear, Targets, WeightFactory

if TYPE_CHECKING:
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch


class GatedMLP:
    """down(silu(gate(x)) * up(x)) * out_scale, the gate multiplied by gate_scale before.

    names: of gate, up and down in checkpoints, or of a tensor that holds gate and up one below the
    other, and of down.
    """

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        factory: WeightFactory,
        names: tuple[str, ...] = ("gate_proj", "up_proj", "down_proj"),
        bias: bool = False,
        gate_scale: float = 1.0,
        out_scale: float = 1.0,
    ) -> None:
        *inner, down = names
        width = 2 * intermediate_size // len(inner)
        self._gate_up = MergedLinear(hidden_size, [(n, width) for n in inner], factory, bias)
        self._down = Linear(down, intermediate_size, hidden_size, factory, bias)
        self._width = intermediate_size
        self._scales = (gate_scale, out_scale)
        self._silu_and_mul = get_op("silu_and_mul", factory.device)

    def forward(self, x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """[tokens, hidden] to the same."""
        gate_scale, out_scale = self._scales
        gate_up = self._gate_up.forward(x)
        if gate_scale != 1.0:
            gate_up[..., : self._width] *= gate_scale
        out = self._down.forward(self._silu_and_mul(gate_up))
        return out if out_scale == 1.0 else out * out_scale

    def targets(self, prefix: str) -> Targets:
        """Where the checkpoint's tensors go."""
        return {**self._gate_up.targets(prefix), **self._down.targets(prefix)}

    def finish_loading(self) -> None:
        """After all weights are in."""


class SquaredReluMLP:
    """down(relu(up(x))^2) (arXiv:2109.08668)."""

    def __init__(
        self, hidden_size: int, intermediate_size: int, factory: WeightFactory, bias: bool = False
    ) -> None:
        self._up = Linear("up_proj", hidden_size, intermediate_size, factory, bias)
        self._down = Linear("down_proj", intermediate_size, hidden_size, factory, bias)

    def forward(self, x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """[tokens, hidden] to the same."""
        return self._down.forward(relu_squared(self._up.forward(x)))

    def targets(self, prefix: str) -> Targets:
        """Where the checkpoint's tensors go."""
        return {**self._up.targets(prefix), **self._down.targets(prefix)}

    def finish_loading(self) -> None:
        """After all weights are in."""
