"""Feed-forward layers: gated (SwiGLU, arXiv:2002.05202) and plain."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from sglang.srt.kernels.registry import get_op
from sglang.srt.layers.linear import Linear, MergedLinear, Targets, WeightFactory

if TYPE_CHECKING:
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch


class GatedMLP:
    """down(silu(gate(x)) * up(x)).

    names: of gate, up and down in checkpoints, or of gate and up as one tensor and down. scales:
    factors of the gate before its activation and of the output (muP).
    """

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        factory: WeightFactory,
        names: tuple[str, ...] = ("gate_proj", "up_proj", "down_proj"),
        scales: tuple[float, float] = (1.0, 1.0),
        bias: bool = False,
    ) -> None:
        *inputs, down = names
        self._width = intermediate_size
        self._scales = scales
        size = 2 * intermediate_size // len(inputs)
        self._gate_up = MergedLinear(hidden_size, [(name, size) for name in inputs], factory, bias)
        self._down = Linear(down, intermediate_size, hidden_size, factory, bias)
        self._silu_and_mul = get_op("silu_and_mul", factory.device)

    def forward(self, x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """[tokens, hidden] to the same."""
        gate_up, (gate_scale, out_scale) = self._gate_up.forward(x), self._scales
        if gate_scale != 1.0:
            gate_up[:, : self._width] *= gate_scale
        out = self._down.forward(self._silu_and_mul(gate_up))
        return out if out_scale == 1.0 else out * out_scale

    def targets(self, prefix: str) -> Targets:
        """Where the checkpoint's tensors go."""
        return {**self._gate_up.targets(prefix), **self._down.targets(prefix)}

    def finish_loading(self) -> None:
        """After all weights are in."""


class ReluSquaredMLP:
    """down(relu(up(x))^2) (arXiv:2109.08668)."""

    def __init__(self, hidden_size: int, intermediate_size: int, factory: WeightFactory) -> None:
        self._up = Linear("up_proj", hidden_size, intermediate_size, factory)
        self._down = Linear("down_proj", intermediate_size, hidden_size, factory)
        self._relu_squared = get_op("relu_squared", factory.device)

    def forward(self, x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """[tokens, hidden] to the same."""
        return self._down.forward(self._relu_squared(self._up.forward(x)))

    def targets(self, prefix: str) -> Targets:
        """Where the checkpoint's tensors go."""
        return {**self._up.targets(prefix), **self._down.targets(prefix)}

    def finish_loading(self) -> None:
        """After all weights are in."""
