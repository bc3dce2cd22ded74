"""Where each row of a batch lies, for kernels that work on all rows at once.

Built once a step on the host and shared by all layers. Indices are made when a kernel first asks
for them, so that a kernel with other needs costs nothing here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch
import torch.nn.functional as F

CHUNK = 64  # tokens a block of the chunked linear-attention kernels
# Rows that lie inside one block may use a shorter one; a short prompt then costs little.
SHORT_WIDTHS = (16, 32)


@dataclass(frozen=True)
class PrefillRow:
    """One row: tokens [token_start, token_end) of the prefill part of the batch.

    prefix_len: tokens of its sequence that came before. slot: its Mamba slot.
    tracks: (tokens of this row after which to save the state, target slot); inside the row only
    where its sequence is at a multiple of `CHUNK`. Raises ValueError otherwise.
    """

    token_start: int
    token_end: int
    prefix_len: int
    slot: int
    tracks: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        for offset, _ in self.tracks:
            at_block_end = 0 < offset < self.num_tokens and not (self.prefix_len + offset) % CHUNK
            if offset != self.num_tokens and not at_block_end:
                raise ValueError(
                    f"the state after {offset} of {self.num_tokens} tokens, {self.prefix_len} "
                    f"before them, is neither at a multiple of {CHUNK} nor at the end"
                )

    @property
    def num_tokens(self) -> int:
        """Tokens of the row in this step."""
        return self.token_end - self.token_start

    @property
    def block_width(self) -> int:
        """Length of the blocks that this row is cut into.

        A row inside one block needs no place for what came before it in that block.
        """
        if self.prefix_len % CHUNK + self.num_tokens > CHUNK:
            return CHUNK
        return next((width for width in SHORT_WIDTHS if self.num_tokens <= width), CHUNK)

    @property
    def left_pad(self) -> int:
        """Empty positions before the row's first token in its first block."""
        offset = self.prefix_len % CHUNK
        return offset if offset + self.num_tokens > CHUNK else 0

    @property
    def num_blocks(self) -> int:
        """Blocks that the row takes."""
        return -(-(self.left_pad + self.num_tokens) // self.block_width)


@dataclass(frozen=True)
class PrefillLayout:
    """The prefill rows of a batch, in order, without gaps."""

    rows: tuple[PrefillRow, ...]
    device: str
    _windows: dict[int, WindowLayout] = field(default_factory=dict)

    @cached_property
    def block_groups(self) -> list[BlockLayout]:
        """The rows cut into blocks for chunked kernels, rows of equal block width together."""
        widths = sorted({row.block_width for row in self.rows})
        return [
            BlockLayout.build(
                [row for row in self.rows if row.block_width == width],
                self.rows[-1].token_end,
                self.device,
            )
            for width in widths
        ]

    @cached_property
    def slots(self) -> torch.Tensor:
        """Mamba slots of the rows: [rows]."""
        return torch.tensor([row.slot for row in self.rows], device=self.device)

    def windows(self, past: int) -> WindowLayout:
        """The rows as a convolution that looks `past` inputs back needs them."""
        if past not in self._windows:
            self._windows[past] = WindowLayout.build(self.rows, past, self.device)
        return self._windows[past]


@dataclass(frozen=True)
class BlockLayout:
    """Rows cut at absolute multiples of `CHUNK` and padded to whole blocks.

    A row that crosses a multiple is padded on the left up to its first block's start, so that
    blocks end on absolute multiples: states can be saved there, and a prompt cut on the grid goes
    through the same arithmetic as an uncut one.

    Rows are in order of falling block count and blocks in order of steps: step i has the i-th
    block of the first `active[i]` rows, next to each other.

    gather: [blocks * width] token of each position, or the number of tokens (of the whole prefill
    part) where there is none.
    tokens, positions: [tokens] this group's tokens, ascending, and where each is in the blocks.
    active: rows that have an i-th block.
    saves: after step i, (rows, target slots) of states to save, or None.
    slots: [rows] Mamba slots of the rows.
    """

    width: int
    gather: torch.Tensor
    tokens: torch.Tensor
    positions: torch.Tensor
    active: list[int]
    saves: list[tuple[torch.Tensor, torch.Tensor] | None]
    slots: torch.Tensor

    @classmethod
    def build(cls, rows: list[PrefillRow], num_tokens: int, device: str) -> BlockLayout:
        """Cut rows of one block width out of `num_tokens` tokens. `rows` is not empty."""
        width = rows[0].block_width
        rows = sorted(rows, key=lambda row: -row.num_blocks)
        active = [sum(row.num_blocks > step for row in rows) for step in range(rows[0].num_blocks)]
        firsts = [sum(active[:step]) for step in range(len(active))]  # first block of each step
        step_starts = torch.tensor(firsts) * width
        tokens = torch.cat([torch.arange(row.token_start, row.token_end) for row in rows])
        places = []
        for number, row in enumerate(rows):
            place = torch.arange(row.left_pad, row.left_pad + row.num_tokens)
            places.append(step_starts[place // width] + number * width + place % width)
        # Back in the order of the batch, which is what callers get.
        tokens, order = tokens.sort()
        positions = torch.cat(places)[order]
        gather = torch.full((sum(active) * width,), num_tokens)
        gather[positions] = tokens
        saves = [_saves_after(rows, step, device) for step in range(len(active))]
        slots = torch.tensor([row.slot for row in rows])
        return cls(
            width,
            gather.to(device),
            tokens.to(device),
            positions.to(device),
            active,
            saves,
            slots.to(device),
        )

    def cut(self, x: torch.Tensor) -> torch.Tensor:
        """[tokens of the prefill part, ...] to [blocks, width, ...], zero where there is none."""
        padded = F.pad(x, (0, 0) * (x.dim() - 1) + (0, 1)).index_select(0, self.gather)
        return padded.view(-1, self.width, *x.shape[1:])


def _saves_after(
    rows: list[PrefillRow], step: int, device: str
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """States to save after a step: at the block's end, or at the row's end if that is in it."""
    found = [
        (number, slot)
        for number, row in enumerate(rows)
        for offset, slot in row.tracks
        if (
            step == row.num_blocks - 1
            if offset == row.num_tokens
            else row.left_pad + offset == (step + 1) * row.block_width
        )
    ]
    if not found:
        return None
    numbers, slots = zip(*found, strict=True)
    return torch.tensor(numbers, device=device), torch.tensor(slots, device=device)


@dataclass(frozen=True)
class WindowLayout:
    """Rows one after another, each with its `past` last inputs before its tokens.

    join: [rows * past + tokens] index into (all rows' past inputs, then all tokens), or None when
    that already is the order, as it is for a single row.
    outputs: [tokens] position of each token's oldest input, or None for all positions in order.
    saves, targets: [saved, past] positions of inputs to keep, and the slots [saved] they go to.
    """

    join: torch.Tensor | None
    outputs: torch.Tensor | None
    saves: torch.Tensor
    targets: torch.Tensor

    @classmethod
    def build(cls, rows: tuple[PrefillRow, ...], past: int, device: str) -> WindowLayout:
        """Indices for the prefill rows of a batch."""
        joins, outputs, saves, targets = [], [], [], []
        for number, row in enumerate(rows):
            start = row.token_start + number * past
            joins.append(torch.arange(number * past, (number + 1) * past))
            joins.append(torch.arange(row.token_start, row.token_end) + len(rows) * past)
            outputs.append(torch.arange(start, start + row.num_tokens))
            for offset, slot in (*row.tracks, (row.num_tokens, row.slot)):
                saves.append(torch.arange(start + offset, start + offset + past))
                targets.append(slot)
        single = len(rows) == 1
        return cls(
            None if single else torch.cat(joins).to(device),
            None if single else torch.cat(outputs).to(device),
            torch.stack(saves).to(device),
            torch.tensor(targets, device=device),
        )


@dataclass(frozen=True)
class DecodeGroup:
    """Decode rows of similar length.

    rows: [rows] their numbers, or None for all rows in order; slots: [rows, longest] page tables;
    valid: [rows, longest] which entries are tokens, or None when all are.
    """

    rows: torch.Tensor | None
    slots: torch.Tensor
    valid: torch.Tensor | None


@dataclass(frozen=True)
class DecodeLayout:
    """The decode rows of a batch, one query each.

    page_table: the pool's [request slots, context] KV slots; rows: request slot of each row;
    lens: tokens of each row's sequence, the new one included.
    """

    page_table: torch.Tensor
    rows: tuple[int, ...]
    lens: tuple[int, ...]
    device: str

    @cached_property
    def groups(self) -> list[DecodeGroup]:
        """Rows whose padded length is at most twice their own, together.

        One long sequence among short ones must not make all of them long.
        """
        by_size: dict[int, list[int]] = {}
        for number, length in enumerate(self.lens):
            by_size.setdefault(max(length, SHORT_LEN).bit_length(), []).append(number)
        return [self._group(numbers) for _, numbers in sorted(by_size.items())]

    @cached_property
    def host_rows(self) -> torch.Tensor:
        """Row of the page table, first token seen and number of tokens: [3, rows], int64."""
        return torch.tensor([self.rows, [0] * len(self.rows), self.lens])

    def _group(self, numbers: list[int]) -> DecodeGroup:
        lens = [self.lens[number] for number in numbers]
        longest = max(lens)
        table_rows = torch.tensor([self.rows[number] for number in numbers], device=self.device)
        valid = None
        if min(lens) < longest:
            lens_column = torch.tensor(lens, device=self.device).unsqueeze(1)
            valid = torch.arange(longest, device=self.device) < lens_column
        everything = len(numbers) == len(self.rows)
        return DecodeGroup(
            None if everything else torch.tensor(numbers, device=self.device),
            self.page_table[:, :longest].index_select(0, table_rows).long(),
            valid,
        )


# Sequences up to this length share a group: padding them costs less than another call.
SHORT_LEN = 255
