"""Root-mean-square norms (Zhang and Sennrich 2019, arXiv:1910.07467)."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / rms(x) * weight over the last dimension, in fp32; x: [..., dim], weight: [dim]."""
    return F.rms_norm(x.float(), (x.shape[-1],), weight.float(), eps).to(x.dtype)


def gated_rms_norm(
    x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    """rms_norm(x) * silu(gate): the output norm of gated linear attention.

    x, gate: [..., dim]; weight: [dim].
    """
    normed = F.rms_norm(x.float(), (x.shape[-1],), weight.float(), eps)
    return (normed * F.silu(gate.float())).to(x.dtype)
