"""Depthwise causal convolution of a layer, with the inputs it remembers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from sglang.srt.kernels.registry import get_op
from sglang.srt.layers.linear import Targets, WeightFactory

if TYPE_CHECKING:
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch


class CausalConv:
    """silu(conv(x) + bias), or without silu if not `activation`; weights are fp32.

    parts: (name in the checkpoint, channels) side by side. Its memory is the convolution state of
    `layer_id`: the last `kernel - 1` inputs.
    """

    def __init__(
        self,
        parts: list[tuple[str, int]],
        kernel: int,
        bias: bool,
        layer_id: int,
        factory: WeightFactory,
        activation: bool = True,
    ) -> None:
        self._parts = parts
        self._layer_id = layer_id
        self._activation = activation
        channels = sum(size for _, size in parts)
        self._weight = factory.empty(channels, 1, kernel, dtype=torch.float32)
        self._bias = factory.empty(channels, dtype=torch.float32) if bias else None
        self._taps = self._weight
        self._prefill = get_op("causal_conv_prefill", factory.device)
        self._decode = get_op("causal_conv_decode", factory.device)

    @property
    def weight(self) -> torch.Tensor:
        """[channels, kernel], the oldest input first."""
        return self._weight.squeeze(1)

    def decode(self, x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """The decode rows, [rows, channels]; their last inputs move on."""
        states = batch.mamba_pool.conv_state(self._layer_id)
        out: torch.Tensor = self._decode(
            x, self._taps, states, batch.decode_states, self._bias, self._activation
        )
        return out

    def prefill(self, x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """The prompt chunks, [tokens, channels]; their last inputs move on."""
        states = batch.mamba_pool.conv_state(self._layer_id)
        out: torch.Tensor = self._prefill(
            x, self._taps, states, batch.prefill_layout, self._bias, self._activation
        )
        return out

    def targets(self, prefix: str) -> Targets:
        """Where the checkpoint's tensors go."""
        names, sizes = zip(*self._parts, strict=True)
        weights = zip(names, self._weight.split(sizes), strict=True)
        found = {f"{prefix}{name}.weight": weight for name, weight in weights}
        if self._bias is not None:
            biases = zip(names, self._bias.split(sizes), strict=True)
            found.update({f"{prefix}{name}.bias": bias for name, bias in biases})
        return found

    def finish_loading(self) -> None:
        """Put the taps in the form that the kernels read, once they are in."""
        # [channels, kernel] over memory in which each tap is contiguous.
        self._taps = self.weight.t().contiguous().t()
