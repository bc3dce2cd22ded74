"""Where each prefill row of a batch lies, for kernels that carry state through it.

Built once a step on the host and shared by all layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

CHUNK = 64  # tokens a block of the chunked linear-attention kernels


@dataclass(frozen=True)
class PrefillRow:
    """One row: tokens [token_start, token_end) of the prefill part of the batch.

    prefix_len: tokens of its sequence that came before. slot: its Mamba slot.
    tracks: (tokens of this row after which to save the state, target slot).
    """

    token_start: int
    token_end: int
    prefix_len: int
    slot: int
    tracks: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class PrefillLayout:
    """The prefill rows of a batch, in order, without gaps."""

    rows: tuple[PrefillRow, ...]
    device: str

    @cached_property
    def blocks(self) -> BlockLayout:
        """The rows cut into blocks for chunked kernels."""
        return BlockLayout.build(self)


@dataclass(frozen=True)
class BlockLayout:
    """Rows cut at absolute multiples of `CHUNK` and padded to whole blocks.

    A row that starts inside a block is padded on the left up to the block's start, so that blocks
    always end on absolute multiples: states can be saved there, and a prompt cut on the grid goes
    through the same arithmetic as an uncut one.

    gather: [blocks * CHUNK] token of each position, `num_tokens` for padding.
    scatter: [tokens] position of each token.
    steps: the i-th block of every row that has one, as (row numbers, block numbers).
    saves: for each step, (position in `row numbers`, target slot) of states to save after it.
    ends: (row number, target slot): final states to save once more.
    """

    gather: torch.Tensor
    scatter: torch.Tensor
    steps: list[tuple[torch.Tensor, torch.Tensor]]
    saves: list[list[tuple[int, int]]]
    ends: list[tuple[int, int]]
    slots: torch.Tensor

    @classmethod
    def build(cls, layout: PrefillLayout) -> BlockLayout:
        """Cut the rows of a layout."""
        rows, device = layout.rows, layout.device
        pads = [row.prefix_len % CHUNK for row in rows]
        counts = [row.token_end - row.token_start for row in rows]
        num_blocks = [-(-(p + n) // CHUNK) for p, n in zip(pads, counts, strict=True)]
        firsts = [sum(num_blocks[:i]) for i in range(len(rows))]
        scatter = torch.cat(
            [torch.arange(n) + f * CHUNK + p for f, p, n in zip(firsts, pads, counts, strict=True)]
        )
        num_tokens = rows[-1].token_end - rows[0].token_start
        gather = torch.full((sum(num_blocks) * CHUNK,), num_tokens, dtype=torch.int64)
        gather[scatter] = torch.arange(num_tokens)
        steps = []
        saves: list[list[tuple[int, int]]] = []
        for step in range(max(num_blocks)):
            active = [i for i, n in enumerate(num_blocks) if n > step]
            blocks = [firsts[i] + step for i in active]
            steps.append((torch.tensor(active, device=device), torch.tensor(blocks, device=device)))
            saves.append(_saves_after(rows, pads, active, step))
        return cls(
            gather.to(device),
            scatter.to(device),
            steps,
            saves,
            [(i, slot) for i, row in enumerate(rows) for at, slot in row.tracks if at == counts[i]],
            torch.tensor([row.slot for row in rows], device=device),
        )


def _saves_after(
    rows: tuple[PrefillRow, ...], pads: list[int], active: list[int], step: int
) -> list[tuple[int, int]]:
    return [
        (place, slot)
        for place, i in enumerate(active)
        for offset, slot in rows[i].tracks
        if offset < rows[i].token_end - rows[i].token_start
        and pads[i] + offset == (step + 1) * CHUNK
    ]
