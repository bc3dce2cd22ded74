"""The gated delta rule (arXiv:2412.06464), chunked for prompts and step by step for decoding.

Per head, with key k, value v, query q, decay exp(g) and writing strength beta:

    S_t = exp(g_t) (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T,    o_t = S_t^T q_t

The chunked form is the WY representation of the delta rule (arXiv:2406.06484) with decays: inside
a block the state updates are folded into one triangular system.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from sglang.srt.kernels.batch_layout import CHUNK, BlockLayout, PrefillLayout

L2_EPS = 1e-6


def gated_delta_prefill(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    states: torch.Tensor,
    layout: PrefillLayout,
) -> torch.Tensor:
    """All prefill rows of a batch at once; states are read and updated in place.

    q, k: [tokens, key_heads, key_dim], normalised here; v: [tokens, value_heads, value_dim];
    g (log decay, <= 0), beta: [tokens, value_heads]; states: [slots, value_heads, key_dim,
    value_dim]. Returns [tokens, value_heads, value_dim] in fp32. Work inside the blocks is done for
    all blocks of all rows together; only the state passes from block to block, row by row.
    """
    blocks = layout.blocks
    inner = _fold_blocks(
        *_to_blocks(_unit(q) * q.shape[-1] ** -0.5, _unit(k), v.float(), g, beta, blocks)
    )
    state = states[blocks.slots].float()
    out = torch.empty_like(inner.u)
    for (rows, numbers), saves in zip(blocks.steps, blocks.saves, strict=True):
        before = state[rows]
        written = inner.u[numbers] - inner.w[numbers] @ before
        out[numbers] = inner.q[numbers] @ before + inner.scores[numbers] @ written
        after = before * inner.decay[numbers] + inner.k[numbers].transpose(-1, -2) @ written
        state[rows] = after
        for place, slot in saves:
            states[slot] = after[place].to(states.dtype)
    states[blocks.slots] = state.to(states.dtype)
    for row, slot in blocks.ends:
        states[slot] = state[row].to(states.dtype)
    flat = out.transpose(1, 2).reshape(-1, *out.shape[1:2], out.shape[-1])
    return flat[blocks.scatter]


def gated_delta_decode(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    states: torch.Tensor,
    slots: torch.Tensor,
) -> torch.Tensor:
    """One token a row: shapes as in `gated_delta_prefill` with rows for tokens; slots: [rows]."""
    repeat = v.shape[1] // k.shape[1]
    q = (_unit(q) * q.shape[-1] ** -0.5).repeat_interleave(repeat, 1)
    k = _unit(k).repeat_interleave(repeat, 1)
    state = states[slots].float() * g.float().exp()[..., None, None]
    remembered = (k.unsqueeze(-2) @ state).squeeze(-2)
    change = (v.float() - remembered) * beta.float().unsqueeze(-1)
    state.addcmul_(k.unsqueeze(-1), change.unsqueeze(-2))
    states[slots] = state.to(states.dtype)
    return (q.unsqueeze(-2) @ state).squeeze(-2)


class _Blocks:
    """What one block needs of the state before it, and does to it ([blocks, heads, ...])."""

    def __init__(
        self,
        u: torch.Tensor,
        w: torch.Tensor,
        q: torch.Tensor,
        k: torch.Tensor,
        scores: torch.Tensor,
        decay: torch.Tensor,
    ) -> None:
        self.u = u  # values written if the state before were zero [CHUNK, value_dim]
        self.w = w  # what the state before takes off them [CHUNK, key_dim]
        self.q = q  # queries with the decay since the block's start [CHUNK, key_dim]
        self.k = k  # keys with the decay up to the block's end [CHUNK, key_dim]
        self.scores = scores  # causal attention inside the block [CHUNK, CHUNK]
        self.decay = decay  # of the whole block [1, 1]


def _unit(x: torch.Tensor) -> torch.Tensor:
    """x / |x| over the last dimension, in fp32."""
    x = x.float()
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + L2_EPS)


def _to_blocks(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    blocks: BlockLayout,
) -> tuple[torch.Tensor, ...]:
    """[tokens, heads, ...] to [blocks, value_heads, CHUNK, ...], zero where there is no token.

    A zero key, value, decay and strength leave the state alone.
    """
    repeat = v.shape[1] // k.shape[1]
    out = []
    for x in (q, k, v, g.float(), beta.float()):
        padded = F.pad(x, (0, 0) * (x.dim() - 1) + (0, 1))[blocks.gather]
        x = padded.view(-1, CHUNK, *x.shape[1:]).transpose(1, 2)
        out.append(x.repeat_interleave(repeat, 1) if x.shape[1] != v.shape[1] else x)
    return tuple(out)


def _fold_blocks(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor
) -> _Blocks:
    total = g.cumsum(-1)  # log decay since the block's start
    between = torch.exp((total.unsqueeze(-1) - total.unsqueeze(-2)).tril()).tril()
    strong_k = k * beta.unsqueeze(-1)
    system = (strong_k @ k.transpose(-1, -2) * between).tril(-1)
    since_start = total.exp().unsqueeze(-1)
    right = torch.cat([v * beta.unsqueeze(-1), strong_k * since_start], dim=-1)
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    u, w = solved.split([v.shape[-1], k.shape[-1]], dim=-1)
    return _Blocks(
        u.contiguous(),
        w,
        q * since_start,
        k * (total[..., -1:] - total).exp().unsqueeze(-1),
        q @ k.transpose(-1, -2) * between,
        total[..., -1].exp()[..., None, None],
    )
