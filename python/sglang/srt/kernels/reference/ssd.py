"""The state space dual of Mamba-2 (arXiv:2405.21060): blocks for prompts, steps for decoding.

Per head, with step dt, input x, decay rate a < 0 and skip d; a group of heads shares B and C:

    S_t = exp(dt_t a) S_{t-1} + dt_t x_t B_t^T,    y_t = S_t C_t + d x_t

A head's decay is one number, so that a block is masked attention with B as keys and C as queries
(section 6 of the paper), and what came before the block enters as one matrix.
"""

from __future__ import annotations

import torch

from sglang.srt.kernels.batch_layout import BlockLayout, PrefillLayout
from sglang.srt.kernels.reference.block_loop import carry_states, run_groups


def ssd_prefill(
    x: torch.Tensor,
    dt: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    skip: torch.Tensor,
    states: torch.Tensor,
    layout: PrefillLayout,
) -> torch.Tensor:
    """All prefill rows of a batch at once; states are read and updated in place.

    x: [tokens, heads, head_dim]; dt (step sizes, >= 0): [tokens, heads], fp32; a (< 0), skip:
    [heads], fp32; b, c: [tokens, groups, state], heads being a multiple of groups; states: [slots,
    heads, head_dim, state]. Returns [tokens, heads, head_dim] in fp32. Work inside the blocks is
    done for all blocks of all rows together; only the state passes from block to block.
    """
    wide, steps = x.float(), dt.float()
    inputs = (wide * steps.unsqueeze(-1), steps * a, b.float(), c.float())
    out = run_groups(layout, lambda blocks: _run_blocks(inputs, states, blocks))
    return out.addcmul_(wide, skip.unsqueeze(-1))


def ssd_decode(
    x: torch.Tensor,
    dt: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    skip: torch.Tensor,
    states: torch.Tensor,
    slots: torch.Tensor,
) -> torch.Tensor:
    """One token a row; shapes as for prompts with rows for tokens; slots: [rows]."""
    wide, steps = x.float(), dt.float()
    rows, heads, dim = x.shape
    groups, size = b.shape[1:]
    state = states.index_select(0, slots).float()
    state.mul_((steps * a).exp_()[..., None, None])
    # The heads of a group are rows of one matrix: B and C need no copies for them.
    grouped = state.view(rows, groups, heads // groups * dim, size)
    driven = (wide * steps.unsqueeze(-1)).view(rows, groups, -1, 1)
    grouped.addcmul_(driven, b.float().unsqueeze(2))
    states.index_copy_(0, slots, state.to(states.dtype))
    out = (grouped @ c.float().unsqueeze(-1)).view(rows, heads, dim)
    return out.addcmul_(wide, skip.unsqueeze(-1))


def _run_blocks(
    inputs: tuple[torch.Tensor, ...], states: torch.Tensor, blocks: BlockLayout
) -> torch.Tensor:
    """One group of rows: [its tokens, heads, head_dim], in the order of its tokens.

    A position without a token has input and step 0: nothing is written, nothing decays.
    """
    driven, g, b, c = (blocks.cut(part) for part in inputs)
    num, width, heads, dim = driven.shape
    groups, size = b.shape[2:]
    keys = b.transpose(1, 2).contiguous()  # [blocks, groups, width, state]
    queries = c.permute(0, 2, 3, 1).contiguous()  # [blocks, groups, state, width]
    # [blocks, heads, head_dim, width]: the heads of a group are rows of one matrix.
    driven = driven.permute(0, 2, 3, 1).contiguous()
    # Differences of long sums: fp64 keeps small decays exact after large ones.
    total = g.double().transpose(1, 2).cumsum(-1)  # [blocks, heads, width]
    # What position j [rows] gives to position i >= j [columns].
    between = (total.unsqueeze(-2) - total.unsqueeze(-1)).float().triu_().exp_().triu_()
    scores = between.view(num, groups, -1, width, width) * (keys @ queries).unsqueeze(2)
    out = driven @ scores.view(num, heads, width, width)
    since_start = total.exp().float().unsqueeze(-2)
    until_end = (total[..., -1:] - total).exp().float().unsqueeze(-2)
    left = (driven * until_end).view(num, groups, -1, width)

    def step(now: slice, before: torch.Tensor) -> None:
        grouped = before.view(len(before), groups, -1, size)
        seen = (grouped @ queries[now]).view(-1, heads, dim, width)
        out[now].addcmul_(seen, since_start[now])
        before.mul_(since_start[now, ..., -1:])
        grouped.add_(left[now] @ keys[now])

    carry_states(states, blocks, step)
    return out.permute(0, 3, 1, 2).flatten(0, 1).index_select(0, blocks.positions)
