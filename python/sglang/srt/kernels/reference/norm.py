"""Root-mean-square norms (Zhang and Sennrich 2019, arXiv:1910.07467)."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / rms(x) * weight over the last dimension, in fp32; x: [..., dim], weight: [dim]."""
    wide = x.float()
    return (wide * _inverse_rms(wide, eps)).mul_(weight).to(x.dtype)


def gated_rms_norm(
    x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    """rms_norm(x) * silu(gate), in fp32: the output norm of gated linear attention.

    x, gate: [..., dim]; weight: [dim].
    """
    wide = x.float()
    normed = (wide * _inverse_rms(wide, eps)).mul_(weight)
    return normed.mul_(F.silu(gate.float())).to(x.dtype)


def grouped_rms_norm(
    x: torch.Tensor,
    gate: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    groups: int,
    gate_first: bool,
) -> torch.Tensor:
    """rms_norm(x * silu(gate)) by groups of values, in fp32: the output norm of Mamba-2.

    x, gate: [..., dim]; weight: [dim], dim being a multiple of `groups`. Without `gate_first` the
    gate multiplies what is normed. Returns [..., dim] in gate's dtype.
    """
    wide, factor = x.float(), F.silu(gate.float())
    if gate_first:
        wide = wide * factor
    parts = wide.unflatten(-1, (groups, -1))
    normed = (parts * _inverse_rms(parts, eps)).flatten(-2).mul_(weight)
    return (normed if gate_first else normed.mul_(factor)).to(gate.dtype)


def _inverse_rms(x: torch.Tensor, eps: float) -> torch.Tensor:
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return torch.addcmul(length.new_full((), eps), length, length, value=1 / x.shape[-1]).rsqrt_()
