"""A block of pre-normalised parts around the residual stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

from sglang.srt.layers.layernorm import RMSNorm
from sglang.srt.layers.linear import Targets

if TYPE_CHECKING:
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch


class Part(Protocol):
    """Attention, a recurrent layer, an MLP."""

    def forward(self, x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """[tokens, hidden] to the same."""

    def targets(self, prefix: str) -> Targets:
        """Where the checkpoint's tensors go."""

    def finish_loading(self) -> None:
        """After all weights are in."""


@dataclass(frozen=True)
class Residual:
    """A part with the norm in front of it and its name in checkpoints."""

    norm: RMSNorm
    name: str
    part: Part


class ResidualBlock:
    """x + scale * part(norm(x)), for one part after another."""

    def __init__(self, *residuals: Residual, scale: float = 1.0) -> None:
        self._residuals = residuals
        self._scale = scale

    def forward(self, x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """[tokens, hidden] to the same."""
        for residual in self._residuals:
            change = residual.part.forward(residual.norm.forward(x), batch)
            x = torch.add(x, change, alpha=self._scale)
        return x

    def targets(self, prefix: str) -> Targets:
        """Where the checkpoint's tensors go."""
        found: Targets = {}
        for residual in self._residuals:
            found.update(residual.norm.targets(prefix))
            found.update(residual.part.targets(f"{prefix}{residual.name}."))
        return found

    def finish_loading(self) -> None:
        """After all weights are in."""
        for residual in self._residuals:
            residual.norm.finish_loading()
            residual.part.finish_loading()
