"""Gated feed-forward layer (SwiGLU, arXiv:2002.05202)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from sglang.srt.kernels.registry import get_op
from sglang.srt.layers.linear import Linear, MergedLinear, Targets, WeightFactory

if TYPE_CHECKING:
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch


class GatedMLP:
    """down(silu(gate(x)) * up(x)). names: of gate, up and down in checkpoints."""

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        factory: WeightFactory,
        names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
    ) -> None:
        gate, up, down = names
        self._gate_up = MergedLinear(
            hidden_size, [(gate, intermediate_size), (up, intermediate_size)], factory
        )
        self._down = Linear(down, intermediate_size, hidden_size, factory)
        self._silu_and_mul = get_op("silu_and_mul", factory.device)

    def forward(self, x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """[tokens, hidden] to the same."""
        return self._down.forward(self._silu_and_mul(self._gate_up.forward(x)))

    def targets(self, prefix: str) -> Targets:
        """Where the checkpoint's tensors go."""
        return {**self._gate_up.targets(prefix), **self._down.targets(prefix)}

    def finish_loading(self) -> None:
        """After all weights are in."""
