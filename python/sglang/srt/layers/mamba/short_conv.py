"""Double-gated short convolution (LFM2, arXiv:2511.23404): no recurrent state, only last inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from sglang.srt.kernels.registry import get_op
from sglang.srt.layers.linear import Linear, Targets, WeightFactory

if TYPE_CHECKING:
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch


class ShortConv:
    """out(c * conv(b * x)), where b, c and x are three projections of the input.

    Its memory is a `MambaSpec` with `state_shape=()`: the last `kernel - 1` values of b * x.
    """

    def __init__(
        self, hidden_size: int, kernel: int, bias: bool, layer_id: int, factory: WeightFactory
    ) -> None:
        self._layer_id = layer_id
        self._in_proj = Linear("in_proj", hidden_size, 3 * hidden_size, factory, bias)
        self._out_proj = Linear("out_proj", hidden_size, hidden_size, factory, bias)
        self._weight = factory.empty(hidden_size, 1, kernel, dtype=torch.float32)
        self._bias = factory.empty(hidden_size, dtype=torch.float32) if bias else None
        self._taps = self._weight
        self._prefill = get_op("causal_conv_prefill", factory.device)
        self._decode = get_op("causal_conv_decode", factory.device)

    def forward(self, x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """[tokens, hidden] to the same; the inputs kept for the batch's rows move on."""
        b, c, value = self._in_proj.forward(x).chunk(3, dim=-1)
        inputs, cut = b * value, batch.num_decode_rows
        states = batch.mamba_pool.conv_state(self._layer_id)
        parts = []
        for count, op, rows, which in (
            (cut, self._decode, inputs[:cut], lambda: batch.decode_states),
            (batch.num_tokens - cut, self._prefill, inputs[cut:], lambda: batch.prefill_layout),
        ):
            if count:
                parts.append(
                    op(rows, self._taps, states, which(), bias=self._bias, activation=False)
                )
        mixed = parts[0] if len(parts) == 1 else torch.cat(parts)
        return self._out_proj.forward(c * mixed)

    def targets(self, prefix: str) -> Targets:
        """Where the checkpoint's tensors go."""
        found = {**self._in_proj.targets(prefix), **self._out_proj.targets(prefix)}
        found[f"{prefix}conv.weight"] = self._weight
        if self._bias is not None:
            found[f"{prefix}conv.bias"] = self._bias
        return found

    def finish_loading(self) -> None:
        """Put the taps in the form that the kernels read, once they are in."""
        # [channels, kernel] over memory in which each tap is contiguous.
        self._taps = self._weight.squeeze(1).t().contiguous().t()
