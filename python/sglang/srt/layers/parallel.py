"""Parts side by side: each gets the same input, and their outputs are added."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from sglang.srt.layers.linear import Targets

if TYPE_CHECKING:
    from sglang.srt.layers.residual import Part
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch


@dataclass(frozen=True)
class Branch:
    """A part with its name in checkpoints, and factors of its input and output (muP)."""

    name: str
    part: Part
    in_scale: float = 1.0
    out_scale: float = 1.0


class Parallel:
    """The sum of out_scale * part(in_scale * x) over its branches."""

    def __init__(self, *branches: Branch) -> None:
        self._branches = branches

    def forward(self, x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """[tokens, hidden] to the same."""
        total: torch.Tensor | None = None
        for branch in self._branches:
            inputs = x if branch.in_scale == 1.0 else x * branch.in_scale
            out = branch.part.forward(inputs, batch)
            if branch.out_scale != 1.0:
                out = out * branch.out_scale
            total = out if total is None else total + out
        assert total is not None
        return total

    def targets(self, prefix: str) -> Targets:
        """Where the checkpoint's tensors go."""
        found: Targets = {}
        for branch in self._branches:
            found.update(branch.part.targets(f"{prefix}{branch.name}."))
        return found

    def finish_loading(self) -> None:
        """After all weights are in."""
        for branch in self._branches:
            branch.part.finish_loading()
