"""What the kernels that carry a state from block to block have in common."""

from __future__ import annotations

from collections.abc import Callable

import torch

from sglang.srt.kernels.batch_layout import BlockLayout, PrefillLayout


def run_groups(layout: PrefillLayout, run: Callable[[BlockLayout], torch.Tensor]) -> torch.Tensor:
    """Outputs of all tokens [tokens, ...], made for one group of rows after another.

    run: from a group to the outputs of its tokens, in their order.
    """
    groups = layout.block_groups
    parts = [run(blocks) for blocks in groups]
    if len(groups) == 1:
        return parts[0]
    out = parts[0].new_empty((layout.rows[-1].token_end, *parts[0].shape[1:]))
    for blocks, part in zip(groups, parts, strict=True):
        out[blocks.tokens] = part
    return out


def carry_states(
    states: torch.Tensor, blocks: BlockLayout, step: Callable[[slice, torch.Tensor], None]
) -> None:
    """Take the states of a group's rows from block to block, and save those that are wanted.

    states: [slots, ...], read and updated in place. step: given the blocks of a step and the states
    before them [rows, ...] in fp32, leaves the states after them in their place.

    The state passes through the pool's dtype after every block: a request that starts from a
    state saved on the grid goes on exactly as the one that saved it, whatever that dtype is.
    """
    state = states.index_select(0, blocks.slots).float()
    first = 0
    for active, saves in zip(blocks.active, blocks.saves, strict=True):
        now, first = slice(first, first + active), first + active
        before = state[:active]
        step(now, before)
        if states.dtype != torch.float32:
            before.copy_(before.to(states.dtype))
        if saves is not None:
            rows, targets = saves
            states.index_copy_(0, targets, state.index_select(0, rows).to(states.dtype))
    states.index_copy_(0, blocks.slots, state.to(states.dtype))
