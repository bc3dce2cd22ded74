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
) -> torch.Tensor:
    """silu(conv(x)) over the prefill rows of a batch; states are read and updated in place.

    x: [tokens, channels], rows one after another; weight: [channels, kernel], oldest input first;
    states: [slots, channels, kernel - 1], oldest first. Returns [tokens, channels].
    """
    taps = weight.t().contiguous()  # [kernel, channels]
    past = len(taps) - 1
    out = torch.empty_like(x)
    for row in layout.rows:
        count = row.token_end - row.token_start
        window = x.new_empty((past + count, x.shape[1]))
        window[:past] = states[row.slot].t()
        window[past:] = x[row.token_start : row.token_end]
        mixed = window[:count] * taps[0]
        for tap in range(1, past + 1):
            mixed.addcmul_(window[tap : tap + count], taps[tap])
        out[row.token_start : row.token_end] = F.silu(mixed)
        for offset, slot in (*row.tracks, (count, row.slot)):
            states[slot] = window[offset : offset + past].t().to(states.dtype)
    return out


def causal_conv_decode(
    x: torch.Tensor, weight: torch.Tensor, states: torch.Tensor, slots: torch.Tensor
) -> torch.Tensor:
    """One token a row: x [rows, channels], slots [rows]; states are updated in place."""
    window = torch.cat([states[slots].to(x.dtype), x.unsqueeze(-1)], dim=-1)
    states[slots] = window[..., 1:].to(states.dtype)
    return F.silu((window * weight).sum(-1))
