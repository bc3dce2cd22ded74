"""A block of normalised parts around the residual stream."""

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
    """A part with its name in checkpoints ("" for one whose own parts have names of the layer's),
    and the norms in front of it and behind it, if any."""

    norm: RMSNorm | None
    name: str
    part: Part
    post_norm: RMSNorm | None = None

    def forward(self, x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """What the part adds: [tokens, hidden] to the same."""
        change = self.part.forward(x if self.norm is None else self.norm.forward(x), batch)
        return change if self.post_norm is None else self.post_norm.forward(change)

    @property
    def norms(self) -> list[RMSNorm]:
        """Those that there are."""
        return [norm for norm in (self.norm, self.post_norm) if norm is not None]


class ResidualBlock:
    """x + scale * post_norm(part(norm(x))), for one part after another."""

    def __init__(self, *residuals: Residual, scale: float = 1.0) -> None:
        self._residuals = residuals
        self._scale = scale

    def forward(self, x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """[tokens, hidden] to the same."""
        for residual in self._residuals:
            x = torch.add(x, residual.forward(x, batch), alpha=self._scale)
        return x

    def targets(self, prefix: str) -> Targets:
        """Where the checkpoint's tensors go."""
        found: Targets = {}
        for residual in self._residuals:
            for norm in residual.norms:
                found.update(norm.targets(prefix))
            own = f"{prefix}{residual.name}." if residual.name else prefix
            found.update(residual.part.targets(own))
        return found

    def finish_loading(self) -> None:
        """After all weights are in."""
        for residual in self._residuals:
            for norm in residual.norms:
                norm.finish_loading()
            residual.part.finish_loading()
