"""Training-time replacements for the slow CPU operations of the reference model.

The reference PyTorch path of the gated delta rule (arXiv:2412.06464) inverts its triangular matrix
row by row and runs its depthwise convolution through a generic kernel.  Both are slow
on a CPU when gradients are needed.  The functions here compute the same values with batched
matrix products, so one core reaches a useful number of tokens per second.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CHUNK = 64


def _unit(x: Tensor) -> Tensor:
    """Scale the last dimension of ``x`` to unit length, as the reference kernel does."""
    return x * torch.rsqrt((x * x).sum(dim=-1, keepdim=True) + 1e-6)


def _to_chunks(x: Tensor, pad: int) -> Tensor:
    """Turn ``(batch, time, heads, dim)`` into ``(chunks, batch * heads, CHUNK, dim)``."""
    batch, time, heads, dim = x.shape
    x = F.pad(x, (0, 0, 0, 0, 0, pad))
    x = x.view(batch, (time + pad) // CHUNK, CHUNK, heads, dim).permute(1, 0, 3, 2, 4)
    return x.reshape(x.shape[0], batch * heads, CHUNK, dim).contiguous()


def chunk_gated_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = True,
    **_: Any,
) -> tuple[Tensor, None]:
    """Chunked gated delta rule from an empty state, without returning the final state.

    All work inside a chunk is batched over batch, heads and chunks; only the
    state that passes from one chunk to the next is computed in a loop.
    """
    assert initial_state is None and not output_final_state and use_qk_l2norm_in_kernel
    batch, time, heads, v_dim = value.shape
    pad = -time % CHUNK
    q = _to_chunks(_unit(query.float()) * query.shape[-1] ** -0.5, pad)
    k = _to_chunks(_unit(key.float()), pad)
    v = _to_chunks(value.float() * beta.float()[..., None], pad)
    gate = _to_chunks(g.float()[..., None], pad).cumsum(dim=2)
    k_beta = k * _to_chunks(beta.float()[..., None], pad)

    decay = (gate - gate.transpose(-1, -2)).tril().exp().tril()
    k_t = k.transpose(-1, -2)
    lower = (k_beta @ k_t) * decay.tril(-1)
    from_start = gate.exp()
    rhs = torch.cat([v, k_beta * from_start], dim=-1)
    solved = torch.linalg.solve_triangular(lower, rhs, upper=False, unitriangular=True)
    v_solved, k_solved = solved.split([v_dim, k.shape[-1]], dim=-1)
    scores = (q @ k_t) * decay
    q_state = q * from_start
    k_out = (k * (gate[:, :, -1:] - gate).exp()).transpose(-1, -2)
    last = from_start[:, :, -1:]

    outputs = []
    state = q.new_zeros(batch * heads, k.shape[-1], v_dim)
    for i in range(q.shape[0]):
        v_new = torch.baddbmm(v_solved[i], k_solved[i], state, alpha=-1)
        outputs.append(torch.baddbmm(torch.bmm(q_state[i], state), scores[i], v_new))
        state = torch.baddbmm(state * last[i], k_out[i], v_new)
    out = torch.stack(outputs).view(-1, batch, heads, CHUNK, v_dim)
    out = out.permute(1, 0, 3, 2, 4).reshape(batch, time + pad, heads, v_dim)
    return out[:, :time].to(value.dtype), None


class ShiftConv1d(nn.Conv1d):
    """Depthwise causal convolution as a sum of shifted copies (same parameters)."""

    def forward(self, x: Tensor) -> Tensor:
        """Convolve ``x`` of shape ``(batch, channels, time)`` along time."""
        kernel = self.kernel_size[0]
        time = x.shape[-1]
        x = F.pad(x, (kernel - 1, 0))
        out = x[..., :time] * self.weight[:, :, 0]
        for i in range(1, kernel):
            out = out + x[..., i : i + time] * self.weight[:, :, i]
        return out


def patch_model(model: nn.Module) -> None:
    """Switch every gated delta net layer of ``model`` to the operations above."""
    module: Any
    for module in model.modules():
        if type(module).__name__ == "Qwen3_5GatedDeltaNet":
            module.chunk_gated_delta_rule = chunk_gated_delta_rule
            module.conv1d.__class__ = ShiftConv1d
