"""State-space duality, the recurrence of Mamba-2 (arXiv:2405.21060), chunked and step by step.

Per head, with decay exp(dt_t a), input x_t, and B_t, C_t shared by the heads of a group:

    S_t = exp(dt_t a) S_{t-1} + dt_t x_t B_t^T,    y_t = S_t C_t + D x_t

Inside a block the outputs are a causal product of C and B with decays (section 6 of the paper);
only the state passes from block to block.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sglang.srt.kernels.batch_layout import BlockLayout, PrefillLayout


def ssd_prefill(
    x: torch.Tensor,
    dt: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    d: torch.Tensor,
    states: torch.Tensor,
    layout: PrefillLayout,
) -> torch.Tensor:
    """All prefill rows of a batch at once; states are read and updated in place.

    x: [tokens, heads, head_dim]; dt (step sizes, >= 0): [tokens, heads], fp32; a (< 0), d: [heads],
    fp32; b, c: [tokens, groups, state]; states: [slots, heads, head_dim, state]. Returns [tokens,
    heads, head_dim] in fp32.
    """
    wide, dt = x.float(), dt.float()
    inputs = _Inputs(wide * dt.unsqueeze(-1), dt * a, b.float(), c.float())
    skipped = wide * d.unsqueeze(-1)
    groups = layout.block_groups
    if len(groups) == 1:
        return skipped.add_(_run_blocks(inputs, states, groups[0]))
    for blocks in groups:
        skipped.index_add_(0, blocks.tokens, _run_blocks(inputs, states, blocks))
    return skipped


def ssd_decode(
    x: torch.Tensor,
    dt: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    d: torch.Tensor,
    states: torch.Tensor,
    slots: torch.Tensor,
) -> torch.Tensor:
    """One token a row; shapes as in `ssd_prefill` with rows for tokens; slots: [rows]."""
    wide, dt = x.float(), dt.float()
    rows, heads, head_dim = wide.shape
    groups = b.shape[1]
    state = states.index_select(0, slots).float()
    state.mul_((dt * a).exp_()[..., None, None])
    driven = (wide * dt.unsqueeze(-1)).view(rows, groups, -1, 1)  # the heads of a group together
    grouped = state.view(rows, groups, -1, state.shape[-1])
    grouped.addcmul_(driven, b.float().unsqueeze(2))
    states.index_copy_(0, slots, state.to(states.dtype))
    out = (grouped @ c.float().unsqueeze(-1)).view(rows, heads, head_dim)
    return out.addcmul_(wide, d.unsqueeze(-1))


@dataclass(frozen=True)
class _Inputs:
    """fp32, by token or by position in blocks."""

    driven: torch.Tensor  # dt * x [..., heads, head_dim]
    log_decay: torch.Tensor  # [..., heads]
    b: torch.Tensor  # [..., groups, state]
    c: torch.Tensor


def _run_blocks(inputs: _Inputs, states: torch.Tensor, blocks: BlockLayout) -> torch.Tensor:
    """One group of rows: [its tokens, heads, head_dim], in the order of its tokens.

    The state passes through the pool's dtype after every block: a request that starts from a
    state saved on the grid goes on exactly as the one that saved it, whatever that dtype is.
    """
    cut = _Inputs(
        *(
            blocks.cut(part).transpose(1, 2)  # [blocks, heads or groups, width, ...]
            for part in (inputs.driven, inputs.log_decay, inputs.b, inputs.c)
        )
    )
    state = states.index_select(0, blocks.slots).float()
    out = torch.empty_like(cut.driven, memory_format=torch.contiguous_format)
    first = 0
    for active, saves in zip(blocks.active, blocks.saves, strict=True):
        now, first = slice(first, first + active), first + active
        block = _Inputs(cut.driven[now], cut.log_decay[now], cut.b[now], cut.c[now])
        out[now] = _run_block(block, state[:active])
        if states.dtype != torch.float32:
            state[:active] = state[:active].to(states.dtype)
        if saves is not None:
            rows, targets = saves
            states.index_copy_(0, targets, state.index_select(0, rows).to(states.dtype))
    states.index_copy_(0, blocks.slots, state.to(states.dtype))
    return out.transpose(1, 2).flatten(0, 1).index_select(0, blocks.positions)


def _run_block(block: _Inputs, state: torch.Tensor) -> torch.Tensor:
    """One block a row: [rows, heads, width, head_dim]; state [rows, heads, head_dim, state] moves
    on in place. B and C of a group are never copied for its heads."""
    rows, _, width, head_dim = block.driven.shape
    groups = block.b.shape[1]
    total = block.log_decay.cumsum(-1)  # log decay since the block's start [rows, heads, width]
    between = (total.unsqueeze(-1) - total.unsqueeze(-2)).tril_().exp_().tril_()
    scores = (block.c @ block.b.transpose(-1, -2)).unsqueeze(2)  # [rows, groups, 1, width, width]
    weighed = between.view(rows, groups, -1, width, width).mul_(scores).flatten(1, 2)
    out = weighed @ block.driven
    # What the state before gives: C times the states of all heads of the group.
    by_group = state.view(rows, groups, -1, state.shape[-1])
    seen = block.c @ by_group.transpose(-1, -2)  # [rows, groups, width, heads of it * head_dim]
    seen = seen.view(rows, groups, width, -1, head_dim).transpose(2, 3).reshape(out.shape)
    out.addcmul_(seen, total.exp().unsqueeze(-1))
    # What the block leaves behind.
    left = block.driven * (total[..., -1:] - total).exp_().unsqueeze(-1)
    left = left.transpose(-1, -2).reshape(rows, groups, -1, width)
    state.mul_(total[..., -1].exp()[..., None, None])
    state.add_((left @ block.b).view_as(state))
    return out
