"""Prefill rows around the block length, for kernels that carry state."""

from __future__ import annotations

from dataclasses import dataclass

from sglang.srt.kernels.batch_layout import PrefillLayout, PrefillRow


@dataclass
class Row:
    """Tokens before, tokens now, and after how many of these the state is wanted."""

    prefix: int
    count: int
    tracks: tuple[int, ...] = ()


# Around the block length, inside and across blocks; states at block ends and at row ends.
ROWS = [
    Row(0, 1),
    Row(0, 63, (63,)),
    Row(0, 64, (64,)),
    Row(0, 65, (64, 65)),
    Row(63, 1, (1,)),
    Row(63, 2, (1, 2)),
    Row(64, 130, (64, 128)),
    Row(65, 63, (63,)),
    Row(65, 64, (63,)),
    Row(5, 16, (16,)),
    Row(5, 17),
    Row(40, 24, (24,)),
    Row(1, 300, (63, 127, 255, 300)),
]

# Short and long rows, and rows of one block width in rising and falling order of length.
LONG = [Row(0, 65), Row(64, 130), Row(0, 200, (64,)), Row(1, 300)]
BATCHES = [ROWS, ROWS[::-1], LONG, LONG[::-1]]


def layout_of(rows: list[Row]) -> PrefillLayout:
    """Slots 1.. for the rows, and from 100 on for their tracked states, in order."""
    start, target, built = 0, 100, []
    for number, row in enumerate(rows):
        tracks = tuple((offset, target + i) for i, offset in enumerate(row.tracks))
        target += len(tracks)
        built.append(PrefillRow(start, start + row.count, row.prefix, number + 1, tracks))
        start += row.count
    return PrefillLayout(tuple(built), "cpu")
