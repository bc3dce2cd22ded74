"""The gated delta rule (arXiv:2412.06464), chunked for prompts and step by step for decoding.

Per head, with key k, value v, query q, decay exp(g) and writing strength beta:

    S_t = exp(g_t) (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T,    o_t = S_t^T q_t

The chunked form is the WY representation of the delta rule (arXiv:2406.06484) with decays: inside
a block the state updates are folded into one triangular system.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sglang.srt.kernels.batch_layout import BlockLayout, PrefillLayout
from sglang.srt.kernels.reference.block_loop import carry_states, run_groups

L2_EPS = 1e-6
_BASE = 8  # rows of the triangular blocks that are inverted row by row


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
    all blocks of all rows together; only the state passes from block to block.
    """
    inputs = (_unit(q).mul_(q.shape[-1] ** -0.5), _unit(k), v.float(), g.float(), beta.float())
    return run_groups(layout, lambda blocks: _run_blocks(inputs, states, blocks))


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
    both = _unit(torch.stack([k, q], dim=2))
    if repeat > 1:
        both = both.repeat_interleave(repeat, 1)
    key, query = both.unbind(2)
    state = states.index_select(0, slots).float()
    state.mul_(g.float().exp()[..., None, None])
    # One product reads the state for the key and for the query.
    stored, seen = (both @ state).unbind(2)
    change = (v.float() - stored).mul_(beta.float().unsqueeze(-1))
    state.addcmul_(key.unsqueeze(-1), change.unsqueeze(-2))
    states.index_copy_(0, slots, state.to(states.dtype))
    # The query sees the value written now as far as it matches the key.
    match = (key * query).sum(-1, keepdim=True)
    return torch.addcmul(seen, match, change).mul_(q.shape[-1] ** -0.5)


@dataclass
class _Blocks:
    """What each block needs of the state before it, and does to it ([blocks, heads, ...])."""

    u: torch.Tensor  # values written if the state before were zero [width, value_dim]
    w: torch.Tensor  # what the state before takes off them [width, key_dim]
    q: torch.Tensor  # queries with the decay since the block's start [width, key_dim]
    k: torch.Tensor  # keys with the decay up to the block's end, transposed [key_dim, width]
    scores: torch.Tensor  # causal attention inside the block [width, width]
    decay: torch.Tensor  # of the whole block [1, 1]


def _unit(x: torch.Tensor) -> torch.Tensor:
    """x / |x| over the last dimension, in fp32; a new tensor."""
    x = x.float()
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x * torch.addcmul(length.new_full((), L2_EPS), length, length).rsqrt_()


def _run_blocks(
    inputs: tuple[torch.Tensor, ...], states: torch.Tensor, blocks: BlockLayout
) -> torch.Tensor:
    """One group of rows: [its tokens, value_heads, value_dim], in the order of its tokens."""
    inner = _fold_blocks(*(_to_blocks(x, blocks) for x in inputs))
    out = torch.empty_like(inner.u)

    def step(now: slice, before: torch.Tensor) -> None:
        written = inner.u[now] - inner.w[now] @ before
        torch.add(inner.q[now] @ before, inner.scores[now] @ written, out=out[now])
        before.mul_(inner.decay[now]).add_(inner.k[now] @ written)

    carry_states(states, blocks, step)
    return out.transpose(1, 2).flatten(0, 1).index_select(0, blocks.positions)


def _to_blocks(x: torch.Tensor, blocks: BlockLayout) -> torch.Tensor:
    """[tokens, heads, ...] to [blocks, heads, width, ...], zero where there is no token.

    A zero key, value, decay and strength leave the state alone.
    """
    return blocks.cut(x).transpose(1, 2).contiguous()


def _fold_blocks(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor
) -> _Blocks:
    """q, k: [blocks, key_heads, width, dim]; the rest has value_heads, a multiple of key_heads.

    Products of keys and queries are made once a key head; only what depends on a value head's
    gates is made for each.
    """
    num, key_heads, width, _ = k.shape
    repeat = v.shape[1] // key_heads
    k_t = k.transpose(-1, -2)

    def spread(x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        """x of each key head times a factor of each of its value heads."""
        factor = factor.view(num, key_heads, repeat, *factor.shape[2:])
        return (x.unsqueeze(2) * factor).flatten(1, 2)

    total = g.cumsum(-1)  # log decay since the block's start
    between = (total.unsqueeze(-1) - total.unsqueeze(-2)).tril_().exp_().tril_()
    scores = spread(q @ k_t, between)
    system = spread(k @ k_t, between.mul_(beta.unsqueeze(-1)))
    inverse = invert_unit_lower(system.view(-1, width, width)).view_as(system)
    since_start = total.exp()
    return _Blocks(
        inverse @ (v * beta.unsqueeze(-1)),
        inverse @ spread(k, (beta * since_start).unsqueeze(-1)),
        spread(q, since_start.unsqueeze(-1)),
        spread(k_t, (total[..., -1:] - total).exp_().unsqueeze(-2)),
        scores,
        since_start[..., -1, None, None],
    )


def invert_unit_lower(system: torch.Tensor) -> torch.Tensor:
    """Inverse of I + strictly_lower(system): [batch, n, n], n a multiple of 8 and a power of two.

    Blocks on the diagonal are inverted by forward substitution, then joined two by two:
    [[A, 0], [C, D]]^-1 = [[A^-1, 0], [-D^-1 C A^-1, D^-1]]. Entries above the diagonal of `system`
    are ignored. On a CPU this is several times faster than a batch of triangular solves.
    """
    size = system.shape[-1]
    inverse = torch.zeros_like(system)
    # The batch goes last, so that the small steps run over long vectors.
    corner = _diagonal_blocks(system, _BASE).tril(-1).permute(2, 3, 0, 1).neg()
    corner = corner.contiguous()
    for row in range(2, _BASE):
        corner[row, :row] += (corner[row, :row].unsqueeze(1) * corner[:row, :row]).sum(0)
    _diagonal_blocks(inverse, _BASE).copy_(corner.permute(2, 3, 0, 1))
    inverse.diagonal(dim1=-2, dim2=-1).fill_(1.0)
    half = _BASE
    while half < size:
        pairs = _diagonal_blocks(inverse, 2 * half)
        below = _diagonal_blocks(system, 2 * half)[..., half:, :half]
        joined = pairs[..., half:, half:] @ below @ pairs[..., :half, :half]
        pairs[..., half:, :half] = joined.neg_()
        half *= 2
    return inverse


def _diagonal_blocks(x: torch.Tensor, width: int) -> torch.Tensor:
    """The blocks on the diagonal of [batch, n, n] as a view [batch, n / width, width, width]."""
    batch, size, _ = x.shape
    return x.as_strided(
        (batch, size // width, width, width),
        (size * size, width * (size + 1), size, 1),
        x.storage_offset(),
    )
