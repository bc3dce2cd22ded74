"""Mamba-2's state space dual against its definition, token by token."""

from __future__ import annotations

import random

import pytest
import torch

from sglang.srt.kernels.batch_layout import PrefillLayout, PrefillRow
from sglang.srt.kernels.reference.norm import grouped_rms_norm
from sglang.srt.kernels.reference.ssd import ssd_decode, ssd_prefill
from support.prefill_rows import BATCHES, ROWS, Row, layout_of

SHAPES = [(4, 8, 2, 16), (3, 16, 1, 8), (2, 6, 2, 5)]  # heads, head_dim, groups, state
Shape = tuple[int, int, int, int]
Inputs = tuple[torch.Tensor, ...]


def random_inputs(tokens: int, shape: Shape) -> Inputs:
    """x, dt, a, b, c, skip."""
    heads, dim, groups, size = shape
    return (
        torch.randn(tokens, heads, dim),
        torch.rand(tokens, heads),
        -torch.rand(heads) * 4,
        torch.randn(tokens, groups, size),
        torch.randn(tokens, groups, size),
        torch.randn(heads),
    )


def random_states(shape: Shape) -> torch.Tensor:
    return torch.randn(200, shape[0], shape[1], shape[3])


def cut(inputs: Inputs, now: slice) -> Inputs:
    x, dt, a, b, c, skip = inputs
    return x[now], dt[now], a, b[now], c[now], skip


def by_token(inputs: Inputs, state: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Outputs [tokens, heads, head_dim] and the state after each token, in fp64."""
    x, dt, a, b, c, skip = (tensor.double() for tensor in inputs)
    state, outs, states = state.double(), [], [state.double()]
    heads = x.shape[1]
    group = torch.arange(heads) // (heads // b.shape[1])
    for t in range(len(x)):
        driven = dt[t, :, None, None] * x[t, :, :, None] * b[t, group].unsqueeze(1)
        state = (dt[t] * a).exp()[:, None, None] * state + driven
        outs.append((state * c[t, group].unsqueeze(1)).sum(-1) + skip[:, None] * x[t])
        states.append(state)
    return torch.stack(outs), states


def check(
    inputs: Inputs, states: torch.Tensor, layout: PrefillLayout, tolerance: float = 1e-5
) -> None:
    """Outputs, final and tracked states, and that no other state changes."""
    loose = {"rtol": tolerance, "atol": tolerance}
    before = states.clone()
    out = ssd_prefill(*inputs, states, layout)
    written = {row.slot for row in layout.rows}
    for row in layout.rows:
        now = slice(row.token_start, row.token_end)
        wanted, along = by_token(cut(inputs, now), before[row.slot])
        torch.testing.assert_close(out[now].double(), wanted, **loose)
        for offset, slot in (*row.tracks, (row.num_tokens, row.slot)):
            written.add(slot)
            torch.testing.assert_close(states[slot].double(), along[offset], **loose)
    others = [slot for slot in range(len(states)) if slot not in written]
    assert torch.equal(states[others], before[others]), "a foreign slot was written"


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("batch", [[row] for row in ROWS] + BATCHES, ids=len)
def test_prefill_is_the_recurrence(batch: list[Row], shape: Shape) -> None:
    torch.manual_seed(0)
    layout = layout_of(batch)
    inputs = random_inputs(layout.rows[-1].token_end, shape)
    check(inputs, random_states(shape), layout, 2e-5)


def test_prefill_holds_with_extreme_decays() -> None:
    """Decays from none to total next to each other: no overflow, still the recurrence."""
    torch.manual_seed(1)
    x, dt, a, b, c, skip = random_inputs(300, SHAPES[0])
    dt = torch.where(torch.rand_like(dt) < 0.3, torch.full_like(dt, 50.0), dt * 1e-3)
    layout = layout_of([Row(0, 200), Row(64, 100)])
    check((x / 50, dt, a * 10, b, c, skip), random_states(SHAPES[0]), layout, 2e-5)


@pytest.mark.parametrize("seed", range(4))
def test_prefill_in_any_chunks_equals_one_pass(seed: int) -> None:
    torch.manual_seed(seed)
    rng = random.Random(seed)
    shape, total = rng.choice(SHAPES), rng.choice([1, 63, 64, 65, 200, 333])
    inputs, states = random_inputs(total, shape), torch.zeros_like(random_states(shape))
    whole = ssd_prefill(*inputs, states, layout_of([Row(0, total)]))
    after = states[1].clone()
    states.zero_()
    parts, start = [], 0
    while start < total:
        count = min(total - start, rng.choice([1, 2, 3, 7, 31, 64, 100]))
        part = cut(inputs, slice(start, start + count))
        parts.append(ssd_prefill(*part, states, layout_of([Row(start, count)])))
        start += count
    torch.testing.assert_close(torch.cat(parts), whole, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(states[1], after, rtol=1e-5, atol=1e-5)


def test_prefill_of_a_batch_equals_one_at_a_time() -> None:
    torch.manual_seed(3)
    shape, layout = SHAPES[0], layout_of(ROWS)
    inputs, states = random_inputs(layout.rows[-1].token_end, shape), random_states(shape)
    alone = states.clone()
    out = ssd_prefill(*inputs, states, layout)
    for row in layout.rows:
        now = slice(row.token_start, row.token_end)
        single = PrefillRow(0, row.num_tokens, row.prefix_len, row.slot, row.tracks)
        own = ssd_prefill(*cut(inputs, now), alone, PrefillLayout((single,), "cpu"))
        torch.testing.assert_close(out[now], own, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(states, alone, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_decode_is_one_step_of_the_recurrence(shape: Shape) -> None:
    torch.manual_seed(4)
    slots = torch.tensor([7, 2, 90, 5])
    states, inputs = random_states(shape), random_inputs(4, shape)
    before = states.clone()
    out = ssd_decode(*inputs, states, slots)
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
    inputs = random_inputs(192, shape)
    states = torch.zeros_like(random_states(shape), dtype=torch.bfloat16)
    whole = ssd_prefill(*inputs, states, layout_of([Row(0, 192, (128,))]))
    states[3] = states[100]
    layout = PrefillLayout((PrefillRow(0, 64, 128, 3),), "cpu")
    rest = ssd_prefill(*cut(inputs, slice(128, 192)), states, layout)
    assert torch.equal(rest, whole[128:])
    assert torch.equal(states[3], states[1])


@pytest.mark.parametrize("gate_first", [False, True])
@pytest.mark.parametrize("groups", [1, 3])
def test_grouped_norm_is_the_definition(groups: int, gate_first: bool) -> None:
    torch.manual_seed(6)
    x, gate, weight = torch.randn(5, 12), torch.randn(5, 12), torch.randn(12)
    factor = (gate * torch.sigmoid(gate)).double()
    wide = x.double() * factor if gate_first else x.double()
    parts = wide.view(5, groups, -1)
    normed = (parts / (parts.square().mean(-1, keepdim=True) + 1e-5).sqrt()).flatten(1) * weight
    wanted = normed if gate_first else normed * factor
    found = grouped_rms_norm(x, gate, weight, 1e-5, groups, gate_first)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)
