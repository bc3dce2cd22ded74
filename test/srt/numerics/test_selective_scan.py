"""The selective scan against its definition, token by token."""

from __future__ import annotations

import random

import pytest
import torch

from sglang.srt.kernels.batch_layout import PrefillLayout, PrefillRow
from sglang.srt.kernels.reference import selective_scan
from sglang.srt.kernels.reference.selective_scan import (
    selective_scan_decode,
    selective_scan_prefill,
)
from support.prefill_rows import BATCHES, ROWS, Row, layout_of

SHAPES = [(12, 16), (7, 3)]  # channels, values of a channel's state
Inputs = tuple[torch.Tensor, ...]


def random_inputs(tokens: int, shape: tuple[int, int]) -> Inputs:
    """x, dt, a, b, c."""
    channels, size = shape
    return (
        torch.randn(tokens, channels),
        torch.rand(tokens, channels) * 2,
        -torch.rand(channels, size) * 4,
        torch.randn(tokens, size),
        torch.randn(tokens, size),
    )


def cut(inputs: Inputs, now: slice) -> Inputs:
    x, dt, a, b, c = inputs
    return x[now], dt[now], a, b[now], c[now]


def by_token(inputs: Inputs, state: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Outputs [tokens, channels] and the state after each token, in fp64."""
    x, dt, a, b, c = (tensor.double() for tensor in inputs)
    state, outs, states = state.double(), [], [state.double()]
    for t in range(len(x)):
        state = (dt[t, :, None] * a).exp() * state + torch.outer(dt[t] * x[t], b[t])
        outs.append(state @ c[t])
        states.append(state)
    return torch.stack(outs), states


def check(inputs: Inputs, states: torch.Tensor, layout: PrefillLayout) -> None:
    """Outputs, final and tracked states, and that no other state changes."""
    before = states.clone()
    out = selective_scan_prefill(*inputs, states, layout)
    written = {row.slot for row in layout.rows}
    for row in layout.rows:
        now = slice(row.token_start, row.token_end)
        wanted, along = by_token(cut(inputs, now), before[row.slot])
        torch.testing.assert_close(out[now].double(), wanted, rtol=1e-5, atol=1e-5)
        for offset, slot in (*row.tracks, (row.num_tokens, row.slot)):
            written.add(slot)
            torch.testing.assert_close(states[slot].double(), along[offset], rtol=1e-5, atol=1e-5)
    others = [slot for slot in range(len(states)) if slot not in written]
    assert torch.equal(states[others], before[others]), "a foreign slot was written"


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("batch", [[row] for row in ROWS] + BATCHES, ids=len)
def test_scan_is_the_recurrence(batch: list[Row], shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    layout = layout_of(batch)
    check(random_inputs(layout.rows[-1].token_end, shape), torch.randn(200, *shape), layout)


def test_scan_of_a_few_channels_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many rows and channels do not fit at once: shares of channels, the last one smaller."""
    torch.manual_seed(1)
    layout = layout_of([Row(0, 200), Row(64, 130, (64, 128))])
    monkeypatch.setattr(selective_scan, "MAX_VALUES", 5 * 2 * 64 * 16)
    check(random_inputs(330, SHAPES[0]), torch.randn(200, *SHAPES[0]), layout)


def test_scan_holds_with_extreme_decays() -> None:
    """Decays from none to total next to each other: no overflow, still the recurrence."""
    torch.manual_seed(2)
    x, dt, a, b, c = random_inputs(300, SHAPES[0])
    dt = torch.where(torch.rand_like(dt) < 0.3, torch.full_like(dt, 50.0), torch.zeros_like(dt))
    layout = layout_of([Row(0, 200), Row(64, 100)])
    check((x / 50, dt, a * 10, b, c), torch.randn(200, *SHAPES[0]), layout)


@pytest.mark.parametrize("seed", range(4))
def test_scan_in_any_chunks_equals_one_pass(seed: int) -> None:
    torch.manual_seed(seed)
    rng = random.Random(seed)
    shape, total = rng.choice(SHAPES), rng.choice([1, 63, 64, 65, 200, 333])
    inputs, states = random_inputs(total, shape), torch.zeros(4, *shape)
    whole = selective_scan_prefill(*inputs, states, layout_of([Row(0, total)]))
    after = states[1].clone()
    states.zero_()
    parts, start = [], 0
    while start < total:
        count = min(total - start, rng.choice([1, 2, 3, 7, 31, 64, 100]))
        part = cut(inputs, slice(start, start + count))
        parts.append(selective_scan_prefill(*part, states, layout_of([Row(start, count)])))
        start += count
    torch.testing.assert_close(torch.cat(parts), whole, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(states[1], after, rtol=1e-5, atol=1e-5)


def test_scan_of_a_batch_equals_one_at_a_time() -> None:
    torch.manual_seed(3)
    shape, layout = SHAPES[0], layout_of(ROWS)
    inputs, states = random_inputs(layout.rows[-1].token_end, shape), torch.randn(200, *shape)
    alone = states.clone()
    out = selective_scan_prefill(*inputs, states, layout)
    for row in layout.rows:
        now = slice(row.token_start, row.token_end)
        single = PrefillRow(0, row.num_tokens, row.prefix_len, row.slot, row.tracks)
        own = selective_scan_prefill(*cut(inputs, now), alone, PrefillLayout((single,), "cpu"))
        torch.testing.assert_close(out[now], own, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(states, alone, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("shape", SHAPES)
def test_decode_is_one_step_of_the_recurrence(shape: tuple[int, int]) -> None:
    torch.manual_seed(4)
    slots = torch.tensor([7, 2, 90, 5])
    states, inputs = torch.randn(200, *shape), random_inputs(4, shape)
    before = states.clone()
    out = selective_scan_decode(*inputs, states, slots)
    for row, slot in enumerate(slots.tolist()):
        wanted, along = by_token(cut(inputs, slice(row, row + 1)), before[slot])
        torch.testing.assert_close(out[row].double(), wanted[0], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(states[slot].double(), along[1], rtol=1e-5, atol=1e-5)
    others = [slot for slot in range(200) if slot not in slots.tolist()]
    assert torch.equal(states[others], before[others])


def test_a_state_passes_through_the_dtype_it_is_saved_in() -> None:
    """Going on from a saved bf16 state gives exactly what going on without a stop gives."""
    torch.manual_seed(5)
    shape = SHAPES[0]
    inputs = random_inputs(200, shape)
    states = torch.zeros(200, *shape, dtype=torch.bfloat16)
    whole = selective_scan_prefill(*inputs, states, layout_of([Row(0, 200, (128,))]))
    states[1] = states[100]
    rest = selective_scan_prefill(*cut(inputs, slice(128, 200)), states, layout_of([Row(128, 72)]))
    assert torch.equal(rest, whole[128:])
