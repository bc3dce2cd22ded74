"""Depthwise causal convolution over the last `kernel` inputs, with carried state."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from sglang.srt.kernels.batch_layout import PrefillLayout


def causal_conv_prefill(
    x: torch.Tensor,
    weight: torch.Tensor,
    states: torch.Tensor,
    layout: PrefillLayout,
    bias: torch.Tensor | None = None,
    activation: bool = True,
) -> torch.Tensor:
    """silu(conv(x) + bias) over the prefill rows of a batch; states are read and updated in place.

    x: [tokens, channels], rows one after another; weight: [channels, kernel] in fp32, oldest input
    first; states: [slots, channels, kernel - 1], oldest first; bias: [channels] in fp32. Without
    `activation` there is no silu. Returns [tokens, channels] in x's dtype, summed in fp32. All rows
    are one pass: the windows that would reach across two rows are computed and thrown away.
    """
    taps = weight.t()  # [kernel, channels]
    past, channels = len(taps) - 1, x.shape[1]
    windows = layout.windows(past)
    before = states.index_select(0, layout.slots).transpose(1, 2).reshape(-1, channels)
    inputs = torch.cat([before.to(x.dtype), x])
    if windows.join is not None:
        inputs = inputs.index_select(0, windows.join)
    count, wide = len(inputs) - past, inputs.float()
    mixed = wide[:count] * taps[0]
    for tap in range(1, past + 1):
        mixed.addcmul_(wide[tap : tap + count], taps[tap])
    if windows.outputs is not None:
        mixed = mixed.index_select(0, windows.outputs)
    kept = inputs.index_select(0, windows.saves.flatten()).view(-1, past, channels)
    states.index_copy_(0, windows.targets, kept.transpose(1, 2).to(states.dtype))
    return _finish(mixed, bias, activation).to(x.dtype)


def causal_conv_decode(
    x: torch.Tensor,
    weight: torch.Tensor,
    states: torch.Tensor,
    slots: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: bool = True,
) -> torch.Tensor:
    """One token a row: x [rows, channels], slots [rows]; states are updated in place."""
    before = states.index_select(0, slots).to(x.dtype)
    *taps, last = weight.unbind(1)
    mixed = x.float() * last
    for past, tap in zip(before.float().unbind(-1), taps, strict=True):
        mixed.addcmul_(past, tap)
    after = torch.cat([before[..., 1:], x.unsqueeze(-1)], dim=-1)
    states.index_copy_(0, slots, after.to(states.dtype))
    return _finish(mixed, bias, activation).to(x.dtype)


def _finish(mixed: torch.Tensor, bias: torch.Tensor | None, activation: bool) -> torch.Tensor:
    if bias is not None:
        mixed += bias
    return F.silu(mixed, inplace=True) if activation else mixed
