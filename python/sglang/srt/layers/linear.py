"""Dense projections. Weights are plain tensors that the loader fills."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sglang.srt.kernels.registry import get_op

Targets = dict[str, torch.Tensor]


@dataclass(frozen=True)
class WeightFactory:
    """Makes empty weights for a stage on its device.

    dtype: what the stage computes in. matrix_dtype: what large matrices are stored in, if that is
    another one; the ops convert as they read.
    """

    dtype: torch.dtype
    device: str
    matrix_dtype: torch.dtype | None = None

    def matrix(self, *shape: int) -> torch.Tensor:
        """A large weight: a projection, an embedding, a stack of them."""
        return self.empty(*shape, dtype=self.matrix_dtype)

    def empty(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """A weight to be filled by the loader, in the stage's dtype unless another is given."""
        return torch.empty(shape, dtype=dtype or self.dtype, device=self.device)


class MergedLinear:
    """Several projections of one input as one matrix product.

    parts: (name in the checkpoint, output features); `forward` returns their outputs side by side,
    `split` cuts them apart.
    """

    def __init__(
        self,
        num_inputs: int,
        parts: list[tuple[str, int]],
        factory: WeightFactory,
        bias: bool = False,
    ) -> None:
        self.sizes = [size for _, size in parts]
        self._names = [name for name, _ in parts]
        self.weight = factory.matrix(sum(self.sizes), num_inputs)
        self.bias = factory.empty(sum(self.sizes)) if bias else None
        self._op = get_op("linear", factory.device)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., inputs] to [..., sum of outputs]."""
        result: torch.Tensor = self._op(x, self.weight, self.bias)
        return result

    def split(self, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The outputs of each part (views)."""
        return y.split(self.sizes, dim=-1)

    def targets(self, prefix: str) -> Targets:
        """Where the checkpoint's tensors go: views of the merged ones."""
        found = dict(
            zip(
                (f"{prefix}{name}.weight" for name in self._names),
                self.weight.split(self.sizes),
                strict=True,
            )
        )
        if self.bias is not None:
            names = (f"{prefix}{name}.bias" for name in self._names)
            found.update(zip(names, self.bias.split(self.sizes), strict=True))
        return found


class Linear(MergedLinear):
    """One projection."""

    def __init__(
        self,
        name: str,
        num_inputs: int,
        num_outputs: int,
        factory: WeightFactory,
        bias: bool = False,
    ) -> None:
        super().__init__(num_inputs, [(name, num_outputs)], factory, bias)
