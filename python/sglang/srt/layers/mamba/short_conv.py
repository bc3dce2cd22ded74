"""Double-gated short convolution (LFM2, arXiv:2511.23404): no recurrent state, only last inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from sglang.srt.layers.linear import Linear, Targets, WeightFactory
from sglang.srt.layers.mamba.causal_conv import CausalConv

if TYPE_CHECKING:
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch


class ShortConv:
    """out(c * conv(b * x)), where b, c and x are three projections of the input.

    Its memory is a `MambaSpec` with `state_shape=()`: the last `kernel - 1` values of b * x.
    """

    def __init__(
        self, hidden_size: int, kernel: int, bias: bool, layer_id: int, factory: WeightFactory
    ) -> None:
        self._in_proj = Linear("in_proj", hidden_size, 3 * hidden_size, factory, bias)
        self._out_proj = Linear("out_proj", hidden_size, hidden_size, factory, bias)
        parts = [("conv", hidden_size)]
        self._conv = CausalConv(parts, kernel, bias, layer_id, factory, activation=False)

    def forward(self, x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """[tokens, hidden] to the same; the inputs kept for the batch's rows move on."""
        b, c, value = self._in_proj.forward(x).chunk(3, dim=-1)
        inputs = b * value
        mixed = batch.by_kind(
            lambda rows: self._conv.decode(inputs[rows], batch),
            lambda rows: self._conv.prefill(inputs[rows], batch),
        )
        return self._out_proj.forward(c * mixed)

    def targets(self, prefix: str) -> Targets:
        """Where the checkpoint's tensors go."""
        parts = (self._in_proj, self._out_proj, self._conv)
        return {name: t for part in parts for name, t in part.targets(prefix).items()}

    def finish_loading(self) -> None:
        """After all weights are in."""
        self._conv.finish_loading()
