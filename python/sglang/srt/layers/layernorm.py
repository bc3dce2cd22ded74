"""RMS norm with the weight conventions that occur."""

from __future__ import annotations

import torch

from sglang.srt.kernels.registry import get_op
from sglang.srt.layers.linear import Targets, WeightFactory


class RMSNorm:
    """x / rms(x) * (offset + weight). Qwen3.5 stores weights around zero: offset 1.

    The weight is kept in fp32 whatever the stage computes in: with the offset folded in, a 16-bit
    weight would lose most of what training put into it.
    """

    def __init__(
        self, name: str, dim: int, eps: float, factory: WeightFactory, offset: float = 0.0
    ) -> None:
        self._name = name
        self._eps = eps
        self._offset = offset
        self._weight = factory.empty(dim, dtype=torch.float32)
        self._op = get_op("rms_norm", factory.device)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., dim] to the same."""
        result: torch.Tensor = self._op(x, self._weight, self._eps)
        return result

    def targets(self, prefix: str) -> Targets:
        """Where the checkpoint's tensor goes."""
        return {f"{prefix}{self._name}.weight": self._weight}

    def finish_loading(self) -> None:
        """Fold the offset into the weight, once."""
        self._weight += self._offset
