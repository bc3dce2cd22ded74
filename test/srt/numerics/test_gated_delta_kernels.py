"""The gated delta rule and the causal convolution against their definitions, token by token."""

from __future__ import annotations

import random

import pytest
import torch

from sglang.srt.kernels.batch_layout import CHUNK, PrefillLayout, PrefillRow
from sglang.srt.kernels.reference.conv import causal_conv_decode, causal_conv_prefill
from sglang.srt.kernels.reference.gated_delta import (
    gated_delta_decode,
    gated_delta_prefill,
    invert_unit_lower,
)
from support.prefill_rows import BATCHES, ROWS, Row, layout_of

EPS = 1e-6
KERNEL = 4
CHANNELS = 12
SHAPES = [(2, 4, 16, 16), (1, 3, 8, 24), (3, 3, 32, 8)]  # key heads, value heads, dims


def delta_by_token(
    inputs: tuple[torch.Tensor, ...], state: torch.Tensor
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Outputs [tokens, value_heads, value_dim] and the state after each token, in fp64."""
    q, k, v, g, beta = (x.double() for x in inputs)
    repeat = v.shape[1] // k.shape[1]
    q = q / (q.square().sum(-1, keepdim=True) + EPS).sqrt() * q.shape[-1] ** -0.5
    k = k / (k.square().sum(-1, keepdim=True) + EPS).sqrt()
    state, outs, states = state.double(), [], [state.double()]
    for t in range(len(q)):
        heads = []
        after = state.clone()
        for head in range(v.shape[1]):
            key, query = k[t, head // repeat], q[t, head // repeat]
            kept = g[t, head].exp() * state[head]
            change = beta[t, head] * (v[t, head] - key @ kept)
            after[head] = kept + torch.outer(key, change)
            heads.append(query @ after[head])
        state = after
        outs.append(torch.stack(heads))
        states.append(state)
    return torch.stack(outs), states


def delta_inputs(tokens: int, shape: tuple[int, int, int, int]) -> tuple[torch.Tensor, ...]:
    key_heads, value_heads, key_dim, value_dim = shape
    return (
        torch.randn(tokens, key_heads, key_dim),
        torch.randn(tokens, key_heads, key_dim),
        torch.randn(tokens, value_heads, value_dim),
        -torch.rand(tokens, value_heads).exp() * torch.rand(tokens, value_heads),
        torch.rand(tokens, value_heads),
    )


def delta_states(shape: tuple[int, int, int, int]) -> torch.Tensor:
    return torch.randn(200, shape[1], shape[2], shape[3])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("batch", [[row] for row in ROWS] + BATCHES, ids=len)
def test_delta_prefill_is_the_recurrence(
    batch: list[Row], shape: tuple[int, int, int, int]
) -> None:
    torch.manual_seed(0)
    layout = layout_of(batch)
    inputs, states = delta_inputs(layout.rows[-1].token_end, shape), delta_states(shape)
    before = states.clone()
    out = gated_delta_prefill(*inputs, states, layout)
    written = {row.slot for row in layout.rows}
    for row in layout.rows:
        now = slice(row.token_start, row.token_end)
        wanted, along = delta_by_token(tuple(x[now] for x in inputs), before[row.slot])
        torch.testing.assert_close(out[now].double(), wanted, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(states[row.slot].double(), along[-1], rtol=1e-5, atol=1e-5)
        for offset, slot in row.tracks:
            written.add(slot)
            torch.testing.assert_close(states[slot].double(), along[offset], rtol=1e-5, atol=1e-5)
    others = [slot for slot in range(len(states)) if slot not in written]
    assert torch.equal(states[others], before[others]), "a foreign slot was written"


def test_delta_prefill_holds_with_extreme_gates() -> None:
    """Decays from none to total, writing strengths 0 and 1: no NaN, still the recurrence."""
    torch.manual_seed(1)
    shape, rows = SHAPES[0], [Row(0, 200), Row(64, 100)]
    layout = layout_of(rows)
    q, k, v, g, beta = delta_inputs(300, shape)
    g = torch.where(torch.rand_like(g) < 0.3, torch.full_like(g, -60.0), torch.zeros_like(g))
    beta = (torch.rand_like(beta) < 0.5).float()
    states = delta_states(shape)
    before = states.clone()
    out = gated_delta_prefill(q, k, v, g, beta, states, layout)
    for row in layout.rows:
        now = slice(row.token_start, row.token_end)
        wanted, along = delta_by_token(
            (q[now], k[now], v[now], g[now], beta[now]), before[row.slot]
        )
        torch.testing.assert_close(out[now].double(), wanted, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(states[row.slot].double(), along[-1], rtol=1e-4, atol=1e-4)


def test_delta_prefill_with_repeated_keys_is_stable() -> None:
    """The same key over and over makes the triangular system as hard as it gets."""
    torch.manual_seed(2)
    shape = (1, 1, 16, 16)
    key = torch.randn(1, 1, 16).expand(256, 1, 16)
    v = torch.randn(256, 1, 16)
    g, beta = torch.zeros(256, 1), torch.full((256, 1), 0.999)
    states = torch.zeros(200, *shape[1:])
    out = gated_delta_prefill(key, key, v, g, beta, states, layout_of([Row(0, 256)]))
    wanted, _ = delta_by_token((key, key, v, g, beta), torch.zeros(shape[1:]))
    torch.testing.assert_close(out.double(), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("seed", range(4))
def test_delta_prefill_in_any_chunks_equals_one_pass(seed: int) -> None:
    torch.manual_seed(seed)
    rng = random.Random(seed)
    shape = rng.choice(SHAPES)
    total = rng.choice([1, 63, 64, 65, 200, 333])
    inputs, states = delta_inputs(total, shape), torch.zeros(4, *delta_states(shape).shape[1:])
    whole = gated_delta_prefill(*inputs, states, layout_of([Row(0, total)]))
    after = states[1].clone()
    states.zero_()
    parts, start = [], 0
    while start < total:
        count = min(total - start, rng.choice([1, 2, 3, 7, 31, 64, 100]))
        part = tuple(x[start : start + count] for x in inputs)
        parts.append(gated_delta_prefill(*part, states, layout_of([Row(start, count)])))
        start += count
    torch.testing.assert_close(torch.cat(parts), whole, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(states[1], after, rtol=1e-5, atol=1e-5)


def test_delta_prefill_of_a_batch_equals_one_at_a_time() -> None:
    torch.manual_seed(3)
    shape, layout = SHAPES[0], layout_of(ROWS)
    inputs, states = delta_inputs(layout.rows[-1].token_end, shape), delta_states(shape)
    alone = states.clone()
    out = gated_delta_prefill(*inputs, states, layout)
    for row in layout.rows:
        now = slice(row.token_start, row.token_end)
        single = PrefillRow(0, row.num_tokens, row.prefix_len, row.slot, row.tracks)
        own = gated_delta_prefill(*(x[now] for x in inputs), alone, PrefillLayout((single,), "cpu"))
        torch.testing.assert_close(out[now], own, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(states, alone, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("shape", SHAPES)
def test_delta_decode_is_one_step_of_the_recurrence(shape: tuple[int, int, int, int]) -> None:
    torch.manual_seed(4)
    slots = torch.tensor([7, 2, 90, 5])
    states = delta_states(shape)
    for _ in range(3):
        inputs, before = delta_inputs(4, shape), states.clone()
        out = gated_delta_decode(*inputs, states, slots)
        for row, slot in enumerate(slots.tolist()):
            one = tuple(x[row : row + 1] for x in inputs)
            wanted, along = delta_by_token(one, before[slot])
            torch.testing.assert_close(out[row : row + 1].double(), wanted, rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(states[slot].double(), along[-1], rtol=1e-5, atol=1e-5)
        others = [s for s in range(200) if s not in slots.tolist()]
        assert torch.equal(states[others], before[others])


def test_delta_state_in_bf16_is_what_a_later_step_reads() -> None:
    """A request that goes on from a saved state computes what the one that saved it computes."""
    torch.manual_seed(5)
    shape = SHAPES[0]
    inputs = delta_inputs(192, shape)
    states = torch.zeros(200, *delta_states(shape).shape[1:], dtype=torch.bfloat16)
    whole = gated_delta_prefill(*inputs, states, layout_of([Row(0, 192, (64, 128))]))
    states[3] = states[101]  # saved after 128 tokens
    tail = gated_delta_prefill(
        *(x[128:] for x in inputs),
        states,
        PrefillLayout((PrefillRow(0, 64, 128, 3),), "cpu"),
    )
    assert torch.equal(tail, whole[128:])
    assert torch.equal(states[3], states[1])


@pytest.mark.parametrize("size", [8, 16, 32, 64])
def test_inverse_of_a_unit_triangle(size: int) -> None:
    torch.manual_seed(6)
    system = torch.randn(5, size, size)  # what is on and above the diagonal must not matter
    wanted = torch.linalg.inv(torch.eye(size, dtype=torch.float64) + system.double().tril(-1) * 0.2)
    found = invert_unit_lower((system * 0.2).contiguous())
    torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-4)


# -- convolution -----------------------------------------------------------------------------------


def conv_by_token(
    x: torch.Tensor, weight: torch.Tensor, state: torch.Tensor
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """silu of the weighted sum of the last inputs; state: [channels, past], oldest first."""
    outs, states = [], [state.double()]
    for token in x.double():
        window = torch.cat([states[-1], token.unsqueeze(-1)], dim=-1)
        mixed = (window * weight.double()).sum(-1)
        outs.append(mixed * torch.sigmoid(mixed))
        states.append(window[:, 1:])
    return torch.stack(outs), states


@pytest.mark.parametrize("kernel", [2, 3, KERNEL])
@pytest.mark.parametrize("batch", [[row] for row in ROWS] + BATCHES, ids=len)
def test_conv_prefill_is_the_definition(batch: list[Row], kernel: int) -> None:
    torch.manual_seed(7)
    layout = layout_of(batch)
    x = torch.randn(layout.rows[-1].token_end, CHANNELS)
    weight, states = torch.randn(CHANNELS, kernel), torch.randn(200, CHANNELS, kernel - 1)
    before = states.clone()
    out = causal_conv_prefill(x, weight, states, layout)
    written = {row.slot for row in layout.rows}
    for row in layout.rows:
        now = slice(row.token_start, row.token_end)
        wanted, along = conv_by_token(x[now], weight, before[row.slot])
        torch.testing.assert_close(out[now].double(), wanted, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(states[row.slot].double(), along[-1])
        for offset, slot in row.tracks:
            written.add(slot)
            torch.testing.assert_close(states[slot].double(), along[offset])
    others = [slot for slot in range(len(states)) if slot not in written]
    assert torch.equal(states[others], before[others])


def test_conv_decode_is_the_definition() -> None:
    torch.manual_seed(8)
    weight, states = torch.randn(CHANNELS, KERNEL), torch.randn(200, CHANNELS, KERNEL - 1)
    slots = torch.tensor([3, 1, 150])
    for _ in range(6):
        x, before = torch.randn(3, CHANNELS), states.clone()
        out = causal_conv_decode(x, weight, states, slots)
        for row, slot in enumerate(slots.tolist()):
            wanted, along = conv_by_token(x[row : row + 1], weight, before[slot])
            torch.testing.assert_close(out[row : row + 1].double(), wanted, rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(states[slot].double(), along[-1])


def test_block_length_is_that_of_the_policy() -> None:
    """The scheduler asks for states where the kernels can save them."""
    from sglang.srt.managers.schedule_policy import KERNEL_CHUNK

    assert KERNEL_CHUNK == CHUNK


@pytest.mark.parametrize("row", [(0, 100, 63), (63, 100, 2), (5, 9, 0), (5, 9, 10)])
def test_states_that_cannot_be_saved_are_refused(row: tuple[int, int, int]) -> None:
    prefix, count, offset = row
    with pytest.raises(ValueError, match=f"after {offset} of {count} tokens"):
        PrefillRow(0, count, prefix, 1, ((offset, 2),))
