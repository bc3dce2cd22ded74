"""Element-wise operations worth a kernel of their own."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up (arXiv:2002.05202): [..., 2 * n], gate first, to [..., n]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)


def relu_squared(x: torch.Tensor) -> torch.Tensor:
    """max(x, 0)^2 (arXiv:2109.08668), element by element; a new tensor."""
    return F.relu(x).square_()


def rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding (arXiv:2104.09864) on the first values of each head, halves as pairs.

    x: [tokens, heads, head_dim]; cos, sin: [tokens, rotary_dim / 2] in fp32. Returns a new tensor.
    """
    half = cos.shape[-1]
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    first, second = x[..., :half].float(), x[..., half : 2 * half].float()
    out = x.clone()
    out[..., :half] = first * cos - second * sin
    out[..., half : 2 * half] = second * cos + first * sin
    return out


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """x W^T + b; x: [..., inputs], weight: [outputs, inputs], bias: [outputs] or None.

    A weight that is stored in another dtype is converted: what is computed in is x's.
    """
    return F.linear(x, weight.to(x.dtype), bias)
