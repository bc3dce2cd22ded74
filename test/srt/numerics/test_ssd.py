"""State-space duality against its definition, token by token."""

from __future__ import annotations

import random

import pytest
import torch

from sglang.srt.kernels.batch_layout import PrefillLayout, PrefillRow
from sglang.srt.kernels.reference.norm import grouped_gated_rms_norm
from sglang.srt.kernels.reference.ssd import ssd_decode, ssd_prefill
from support.prefill_rows import BATCHES, ROWS, Row, layout_of

SHAPES = [(4, 2, 8, 16), (3, 1, 5, 6), (2, 2, 16, 3)]  # heads, groups, head_dim, state
Shape = tuple[int, int, int, int]
Inputs = tuple[torch.Tensor, ...]


def random_inputs(tokens: int, shape: Shape) -> Inputs:
    """x, dt, a, b, c, d."""
    heads, groups, head_dim, size = shape
    return (
        torch.randn(tokens, heads, head_dim),
        torch.rand(tokens, heads) * 2,
        -torch.rand(heads) * 4,
        torch.randn(tokens, groups, size),
        torch.randn(tokens, groups, size),
        torch.randn(heads),
    )


def cut(inputs: Inputs, now: slice) -> Inputs:
    x, dt, a, b, c, d = inputs
    return x[now], dt[now], a, b[now], c[now], d


def random_states(shape: Shape) -> torch.Tensor:
    heads, _, head_dim, size = shape
    return torch.randn(200, heads, head_dim, size)


def by_token(inputs: Inputs, state: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Outputs [tokens, heads, head_dim] and the state after each token, in fp64."""
    x, dt, a, b, c, d = (tensor.double() for tensor in inputs)
    repeat = x.shape[1] // b.shape[1]
    b, c = b.repeat_interleave(repeat, 1), c.repeat_interleave(repeat, 1)
    state, outs, states = state.double(), [], [state.double()]
    for t in range(len(x)):
        written = (dt[t, :, None] * x[t]).unsqueeze(-1) * b[t].unsqueeze(1)
        state = (dt[t] * a).exp()[:, None, None] * state + written
        outs.append((state @ c[t].unsqueeze(-1)).squeeze(-1) + d[:, None] * x[t])
        states.append(state)
    return torch.stack(outs), states


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("batch", [[row] for row in ROWS] + BATCHES, ids=len)
def test_blocks_are_the_recurrence(batch: list[Row], shape: Shape) -> None:
    """Outputs, final and tracked states, and no other state changes."""
    torch.manual_seed(0)
    layout, states = layout_of(batch), random_states(shape)
    inputs = random_inputs(layout.rows[-1].token_end, shape)
    kept, before = [x.clone() for x in inputs], states.clone()
    out = ssd_prefill(*inputs, states, layout)
    assert all(torch.equal(x, y) for x, y in zip(inputs, kept, strict=True))
    written = {row.slot for row in layout.rows}
    for row in layout.rows:
        now = slice(row.token_start, row.token_end)
        wanted, along = by_token(cut(inputs, now), before[row.slot])
        torch.testing.assert_close(out[now].double(), wanted, rtol=1e-4, atol=1e-4)
        for offset, slot in (*row.tracks, (row.num_tokens, row.slot)):
            written.add(slot)
            torch.testing.assert_close(states[slot].double(), along[offset], rtol=1e-4, atol=1e-4)
    others = [slot for slot in range(len(states)) if slot not in written]
    assert torch.equal(states[others], before[others]), "a foreign slot was written"


@pytest.mark.parametrize("shape", SHAPES)
def test_steps_are_the_recurrence(shape: Shape) -> None:
    torch.manual_seed(1)
    states, slots = random_states(shape), torch.tensor([7, 3, 150])
    before = states.clone()
    steps = [random_inputs(3, shape) for _ in range(5)]
    a, d = steps[0][2], steps[0][5]
    outs = []
    for x, dt, _, b, c, _ in steps:
        outs.append(ssd_decode(x, dt, a, b, c, d, states, slots))
    for row, slot in enumerate(slots.tolist()):
        own = [torch.stack([step[i][row] for step in steps]) for i in (0, 1, 3, 4)]
        wanted, along = by_token((own[0], own[1], a, own[2], own[3], d), before[slot])
        found = torch.stack([out[row] for out in outs])
        torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(states[slot].double(), along[-1], rtol=1e-4, atol=1e-4)
    others = [slot for slot in range(len(states)) if slot not in slots]
    assert torch.equal(states[others], before[others])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_prompt_cut_on_the_grid_is_the_same_bit_for_bit(dtype: torch.dtype) -> None:
    """Also with 16-bit states: what a cached state lost, the uncut prompt lost as well."""
    torch.manual_seed(2)
    inputs = random_inputs(200, SHAPES[0])
    whole, parts = (torch.zeros(9, 4, 8, 16, dtype=dtype) for _ in range(2))

    def run(states: torch.Tensor, start: int, end: int) -> torch.Tensor:
        row = PrefillRow(0, end - start, start, 1)
        return ssd_prefill(*cut(inputs, slice(start, end)), states, PrefillLayout((row,), "cpu"))

    expected = run(whole, 0, 200)
    found = torch.cat([run(parts, start, end) for start, end in ((0, 64), (64, 192), (192, 200))])
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(parts, whole, rtol=1e-2 if dtype.itemsize == 2 else 1e-5, atol=1e-5)


def test_strong_decays_stay_finite() -> None:
    rng = random.Random(3)
    x, dt, a, b, c, d = random_inputs(130, SHAPES[0])
    dt = torch.tensor([[rng.choice([0.0, 1e-6, 50.0, 300.0]) for _ in range(4)] for _ in dt])
    states = random_states(SHAPES[0])
    layout = PrefillLayout((PrefillRow(0, 130, 0, 1),), "cpu")
    out = ssd_prefill(x, dt, a * 10, b, c, d, states, layout)
    assert torch.isfinite(out).all()
    assert torch.isfinite(states).all()


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("groups", [1, 3])
def test_output_norm(groups: int, before: bool) -> None:
    torch.manual_seed(4)
    x, gate, weight = torch.randn(5, 24), torch.randn(5, 24), torch.randn(24)
    found = grouped_gated_rms_norm(x, gate, weight, 1e-5, groups, before)
    opening = torch.nn.functional.silu(gate.double())
    wide = x.double() if before else x.double() * opening
    parts = wide.view(5, groups, -1)
    normed = (parts / (parts.square().mean(-1, keepdim=True) + 1e-5).sqrt()).view(5, 24) * weight
    expected = normed * opening if before else normed
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
