"""A decode step of a whole gated delta net layer, between its two projections."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from sglang.srt.kernels.reference.conv import causal_conv_decode
from sglang.srt.kernels.reference.gated_delta import gated_delta_decode
from sglang.srt.kernels.reference.norm import gated_rms_norm


@dataclass(frozen=True)
class GatedDeltaWeights:
    """The small weights of a layer, fp32, and its shape.

    conv: [channels, kernel], the oldest input first, channels of q, k, v side by side;
    decay_rate (-exp(A_log)), dt_bias: [value_heads]; norm: [value_dim] with its eps. max_strength:
    of writing; with 2 a key's part of the state may change sign (arXiv:2411.12537).
    """

    conv: torch.Tensor
    decay_rate: torch.Tensor
    dt_bias: torch.Tensor
    norm: torch.Tensor
    eps: float
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    max_strength: float = 1.0

    @property
    def part_sizes(self) -> list[int]:
        """Widths of q, k, v, z (gate), b (writing strength) and a (decay) in a projected row."""
        keys, values = self.key_heads * self.key_dim, self.value_heads * self.value_dim
        return [keys, keys, values, values, self.value_heads, self.value_heads]

    @property
    def num_channels(self) -> int:
        """Channels of the convolution."""
        return sum(self.part_sizes[:3])

    def gates(self, b: torch.Tensor, a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Log decay g and writing strength beta of tokens, [tokens, value_heads] each, fp32."""
        g = F.softplus(a.float() + self.dt_bias).mul_(self.decay_rate)
        return g, torch.sigmoid(b.float()).mul_(self.max_strength)

    def heads(self, mixed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q, k, v by heads, from the convolution's [tokens, channels]."""
        q, k, v = mixed.split(self.part_sizes[:3], dim=-1)
        return (
            q.reshape(-1, self.key_heads, self.key_dim),
            k.reshape(-1, self.key_heads, self.key_dim),
            v.reshape(-1, self.value_heads, self.value_dim),
        )


def gated_delta_step(
    x: torch.Tensor,
    weights: GatedDeltaWeights,
    conv_states: torch.Tensor,
    states: torch.Tensor,
    slots: torch.Tensor,
) -> torch.Tensor:
    """Convolution, gates, recurrence and gated norm of one token a row; both states move on.

    x: [rows, sum(part_sizes)]; conv_states: [slots, channels, kernel - 1]; states: [slots,
    value_heads, key_dim, value_dim]; slots: [rows], distinct. Returns [rows, value_heads,
    value_dim] in x's dtype.
    """
    channels = weights.num_channels
    z, b, a = x[:, channels:].split(weights.part_sizes[3:], dim=-1)
    mixed = causal_conv_decode(x[:, :channels], weights.conv, conv_states, slots)
    g, beta = weights.gates(b, a)
    out = gated_delta_decode(*weights.heads(mixed), g, beta, states, slots).to(x.dtype)
    gate = z.reshape(-1, weights.value_heads, weights.value_dim)
    return gated_rms_norm(out, gate, weights.norm, weights.eps)
