"""What a layer remembers between two steps. A model declares it; pools are built from it."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class AttentionSpec:
    """Keys and values of every past token: `num_kv_heads * (head_dim + v_head_dim)` values each."""

    num_kv_heads: int
    head_dim: int
    v_head_dim: int

    def bytes_per_token(self, itemsize: int) -> int:
        """Bytes that one token costs in this layer at `itemsize` bytes a value."""
        return self.num_kv_heads * (self.head_dim + self.v_head_dim) * itemsize


@dataclass(frozen=True)
class MambaSpec:
    """Constant-size memory of a recurrent layer (Mamba, gated delta net, short convolution).

    conv_dim, conv_kernel: the causal convolution keeps the last `conv_kernel - 1` inputs,
        a state of shape [conv_dim, conv_kernel - 1].
    state_shape: shape of the recurrent state of one request, () when there is none.
    """

    conv_dim: int
    conv_kernel: int
    state_shape: tuple[int, ...]

    def bytes_per_slot(self, conv_itemsize: int, state_itemsize: int) -> int:
        """Bytes that one request's state costs in this layer."""
        state = math.prod(self.state_shape) if self.state_shape else 0
        return self.conv_dim * (self.conv_kernel - 1) * conv_itemsize + state * state_itemsize


# A layer may remember more than one thing (attention and Mamba side by side), or nothing.
LayerSpecs = tuple[AttentionSpec | MambaSpec, ...]
