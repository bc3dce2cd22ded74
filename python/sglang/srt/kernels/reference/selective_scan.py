"""The selective scan of Mamba (arXiv:2312.00752, algorithm 2), in blocks for prompts.

Per channel, with a state of N values, step dt, input x, and B and C shared by all channels:

    h_t = exp(dt_t A) h_{t-1} + dt_t B_t x_t,    y_t = C_t . h_t

Decays differ by channel and by value of the state, so that a block cannot be folded into matrix
products as in Mamba-2; it is a scan of element-wise steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sglang.srt.kernels.batch_layout import BlockLayout, PrefillLayout
from sglang.srt.kernels.reference.block_loop import carry_states, run_groups

# Tokens next to each other that a block's scan goes through one by one, for all such groups of the
# block at once.
_RUN = 8
# Values of the states of a block's tokens held at once: 16 MiB in fp32. Channels are independent,
# and are taken so many at a time that this holds.
MAX_VALUES = 2**22


def selective_scan_prefill(
    x: torch.Tensor,
    dt: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    states: torch.Tensor,
    layout: PrefillLayout,
) -> torch.Tensor:
    """All prefill rows of a batch at once; states are read and updated in place.

    x: [tokens, channels]; dt (step sizes, >= 0): the same, fp32; a (< 0): [channels, state], fp32;
    b, c: [tokens, state]; states: [slots, channels, state]. Returns [tokens, channels] in fp32.
    """
    wide = dt.float()
    inputs = _Inputs(wide * x.float(), wide, b.float(), c.float())
    return run_groups(layout, lambda blocks: _run_blocks(inputs, a, states, blocks))


def selective_scan_decode(
    x: torch.Tensor,
    dt: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    states: torch.Tensor,
    slots: torch.Tensor,
) -> torch.Tensor:
    """One token a row; shapes as for prompts with rows for tokens; slots: [rows]."""
    wide = dt.float()
    state = states.index_select(0, slots).float()
    state.mul_((wide.unsqueeze(-1) * a).exp_())
    state.addcmul_((wide * x.float()).unsqueeze(-1), b.float().unsqueeze(1))
    states.index_copy_(0, slots, state.to(states.dtype))
    return (state @ c.float().unsqueeze(-1)).squeeze(-1)


@dataclass(frozen=True)
class _Inputs:
    """fp32, by token or by position in blocks."""

    driven: torch.Tensor  # dt * x
    dt: torch.Tensor
    b: torch.Tensor
    c: torch.Tensor


def _run_blocks(
    inputs: _Inputs, a: torch.Tensor, states: torch.Tensor, blocks: BlockLayout
) -> torch.Tensor:
    """One group of rows: [its tokens, channels], in the order of its tokens."""
    cut = _Inputs(*map(blocks.cut, (inputs.driven, inputs.dt, inputs.b, inputs.c)))
    channels, size = a.shape
    out = torch.empty_like(cut.driven)
    share = max(1, MAX_VALUES // (blocks.active[0] * blocks.width * size))
    for low in range(0, channels, share):
        part = slice(low, low + share)
        own = _Inputs(cut.driven[..., part], cut.dt[..., part], cut.b, cut.c)
        _run_channels(own, a[part], states[:, part], blocks, out[..., part])
    return out.flatten(0, 1).index_select(0, blocks.positions)


def _run_channels(
    inputs: _Inputs, a: torch.Tensor, states: torch.Tensor, blocks: BlockLayout, out: torch.Tensor
) -> None:
    """Some channels of one group of rows, block after block, into out [blocks, width, channels]."""

    def step(now: slice, before: torch.Tensor) -> None:
        # A position without a token has dt = 0: decay 1 and nothing written.
        decay = (inputs.dt[now].unsqueeze(-1) * a).exp_()
        seen = inputs.driven[now].unsqueeze(-1) * inputs.b[now].unsqueeze(-2)
        _scan(decay, seen, before)
        out[now] = (seen @ inputs.c[now].unsqueeze(-1)).squeeze(-1)
        before.copy_(seen[:, -1])

    carry_states(states, blocks, step)


def _scan(decay: torch.Tensor, seen: torch.Tensor, before: torch.Tensor) -> None:
    """h_t = decay_t h_{t-1} + seen_t, in place of `seen`; `decay` is used up.

    decay, seen: [rows, width, channels, state]; before: [rows, channels, state]. Two levels: runs
    of `_RUN` positions as if nothing had been before them, all runs at once, then what was before
    each run times the product of its decays. Only products of factors of at most 1 are made, so
    that strong decays underflow to 0, as they should, where quotients of cumulative products would
    overflow.
    """
    decay, seen = (x.unflatten(1, (-1, _RUN)) for x in (decay, seen))
    for place in range(1, _RUN):
        seen[:, :, place].addcmul_(decay[:, :, place], seen[:, :, place - 1])
        decay[:, :, place].mul_(decay[:, :, place - 1])
    for run in range(seen.shape[1]):
        seen[:, run].addcmul_(decay[:, run], before.unsqueeze(1))
        before = seen[:, run, -1]
