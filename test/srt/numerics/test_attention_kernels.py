"""Paged attention, norms, gates and rope against their definitions."""

from __future__ import annotations

import pytest
import torch

from sglang.srt.kernels.batch_layout import DecodeLayout
from sglang.srt.kernels.reference import attention
from sglang.srt.kernels.reference.attention import attention_decode, attention_prefill
from sglang.srt.kernels.reference.norm import gated_rms_norm, rms_norm
from sglang.srt.kernels.reference.pointwise import rotary, silu_and_mul
from sglang.srt.layers.rotary import RotaryEmbedding
from sglang.srt.models.rope_config import RopeSettings

POOL = 2000
WIDTH = 700
HEADS = [(4, 2, 16, 16), (3, 1, 32, 32), (2, 2, 16, 24)]  # heads, kv heads, dim, v dim


def attention_by_token(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
) -> torch.Tensor:
    """The last len(q) queries over keys k, v of the whole sequence, one by one, in fp64."""
    q, k, v = q.double(), k.double(), v.double()
    repeat, past, outs = q.shape[1] // k.shape[1], len(k) - len(q), []
    for t in range(len(q)):
        heads = []
        for head in range(q.shape[1]):
            seen = slice(0, past + t + 1)
            scores = k[seen, head // repeat] @ q[t, head] * scale
            weights = (scores - scores.max()).exp()
            heads.append(weights / weights.sum() @ v[seen, head // repeat])
        outs.append(torch.stack(heads))
    return torch.stack(outs)


def pool_of(shape: tuple[int, int, int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    _, kv_heads, dim, v_dim = shape
    return torch.randn(POOL, kv_heads, dim), torch.randn(POOL, kv_heads, v_dim)


@pytest.mark.parametrize("shape", HEADS)
@pytest.mark.parametrize(
    "rows",  # (tokens before, tokens now)
    [
        [(0, 1)],
        [(0, 65)],
        [(63, 2)],
        [(64, 1)],
        [(65, 70)],
        [(0, 5), (1, 1), (63, 64), (200, 3), (0, 64), (64, 65)],
    ],
    ids=str,
)
def test_prefill_attends_prefix_and_itself(
    rows: list[tuple[int, int]], shape: tuple[int, int, int, int]
) -> None:
    torch.manual_seed(0)
    heads, kv_heads, dim, v_dim = shape
    total = sum(count for _, count in rows)
    kv, scale = pool_of(shape), dim**-0.5
    q, k, v = (
        torch.randn(total, n, d) for n, d in ((heads, dim), (kv_heads, dim), (kv_heads, v_dim))
    )
    prefix_slots = [torch.randperm(POOL)[:past] for past, _ in rows]
    bounds = [0]
    for _, count in rows:
        bounds.append(bounds[-1] + count)
    out = attention_prefill(q, k, v, kv, prefix_slots, bounds, scale)
    for i, slots in enumerate(prefix_slots):
        now = slice(bounds[i], bounds[i + 1])
        keys, values = torch.cat([kv[0][slots], k[now]]), torch.cat([kv[1][slots], v[now]])
        wanted = attention_by_token(q[now], keys, values, scale)
        torch.testing.assert_close(out[now].double(), wanted, rtol=1e-5, atol=1e-5)


def test_prefill_in_small_blocks_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no fused kernel applies the scores are made block by block."""
    torch.manual_seed(1)
    shape = HEADS[2]
    kv, slots = pool_of(shape), torch.arange(100)
    q, k, v = torch.randn(70, 2, 16), torch.randn(70, 2, 16), torch.randn(70, 2, 24)
    whole = attention_prefill(q, k, v, kv, [slots], [0, 70], 0.25)
    monkeypatch.setattr(attention, "MAX_SCORES", 2 * 100 * 7)
    parts = attention_prefill(q, k, v, kv, [slots], [0, 70], 0.25)
    torch.testing.assert_close(parts, whole, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("shape", HEADS)
@pytest.mark.parametrize(
    "lens", [[1], [63], [64, 64], [1, 63, 64, 65], [3, 600, 7, 255, 256, 257, 599], [600] * 3]
)
def test_decode_attends_all_tokens(lens: list[int], shape: tuple[int, int, int, int]) -> None:
    torch.manual_seed(2)
    heads, _, dim, v_dim = shape
    kv = pool_of(shape)
    table = torch.randint(0, POOL, (12, WIDTH), dtype=torch.int32)
    rows = torch.randperm(12)[: len(lens)].tolist()
    q = torch.randn(len(lens), heads, dim)
    # What lies beyond a row's length belongs to someone else, and must not be seen.
    layout = DecodeLayout(table, tuple(rows), tuple(lens), "cpu")
    out = attention_decode(q, kv, layout, dim**-0.5)
    assert out.shape == (len(lens), heads, v_dim)
    for i, (row, length) in enumerate(zip(rows, lens, strict=True)):
        slots = table[row, :length].long()
        wanted = attention_by_token(q[i : i + 1], kv[0][slots], kv[1][slots], dim**-0.5)
        torch.testing.assert_close(out[i : i + 1].double(), wanted, rtol=1e-5, atol=1e-5)


def test_decode_equals_prefill_of_one_token() -> None:
    torch.manual_seed(3)
    shape = HEADS[0]
    kv = pool_of(shape)
    slots = torch.randperm(POOL)[:130]
    table = torch.zeros(2, WIDTH, dtype=torch.int32)
    table[1, :130] = slots.int()
    q, last = torch.randn(1, 4, 16), slots[-1:]
    step = attention_decode(q, kv, DecodeLayout(table, (1,), (130,), "cpu"), 0.25)
    chunk = attention_prefill(q, kv[0][last], kv[1][last], kv, [slots[:-1]], [0, 1], 0.25)
    torch.testing.assert_close(step, chunk, rtol=1e-5, atol=1e-6)


def test_attention_with_large_scores_does_not_overflow() -> None:
    torch.manual_seed(4)
    shape = HEADS[0]
    kv = tuple(x * 100 for x in pool_of(shape))
    q, k, v = torch.randn(9, 4, 16) * 100, torch.randn(9, 2, 16) * 100, torch.randn(9, 2, 16)
    slots = torch.arange(64)
    out = attention_prefill(q, k, v, kv, [slots], [0, 9], 1.0)  # type: ignore[arg-type]
    wanted = attention_by_token(q, torch.cat([kv[0][slots], k]), torch.cat([kv[1][slots], v]), 1.0)
    torch.testing.assert_close(out.double(), wanted, rtol=1e-3, atol=1e-2)


# -- norms, gates, rope ----------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 64), (7, 3, 32), (5, 48)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rms_norms(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(5)
    x, gate = torch.randn(shape).to(dtype) * 3, torch.randn(shape).to(dtype)
    weight = torch.randn(shape[-1])
    kept = x.clone(), gate.clone()
    wide = x.double()
    wanted = wide / (wide.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight.double()
    loose = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1e-2, "atol": 1e-2}
    torch.testing.assert_close(rms_norm(x, weight, 1e-6).double(), wanted, **loose)
    wanted = wanted * gate.double() * torch.sigmoid(gate.double())
    torch.testing.assert_close(gated_rms_norm(x, gate, weight, 1e-6).double(), wanted, **loose)
    assert torch.equal(x, kept[0]) and torch.equal(gate, kept[1]), "an input was changed"


def test_rms_norm_of_zeros_is_zero() -> None:
    assert torch.equal(rms_norm(torch.zeros(2, 8), torch.ones(8), 1e-6), torch.zeros(2, 8))


def test_silu_and_mul() -> None:
    torch.manual_seed(6)
    x = torch.randn(5, 24)
    kept = x.clone()
    gate, up = x.double().chunk(2, dim=-1)
    torch.testing.assert_close(silu_and_mul(x).double(), gate * gate.sigmoid() * up)
    assert torch.equal(x, kept), "an input was changed"


@pytest.mark.parametrize("rotary_dim", [8, 16])
def test_rope_turns_pairs_by_position(rotary_dim: int) -> None:
    torch.manual_seed(7)
    x = torch.randn(6, 3, 16)
    kept = x.clone()
    positions = torch.tensor([0, 1, 63, 64, 65, 5000])
    rope = RotaryEmbedding(RopeSettings(10000.0, rotary_dim, "default", {}), "cpu")
    found = rope.apply(x, rope.cos_sin(positions))
    wanted = x.double().clone()
    half = rotary_dim // 2
    for t, position in enumerate(positions.tolist()):
        for i in range(half):
            angle = torch.tensor(position * 10000.0 ** (-2 * i / rotary_dim), dtype=torch.float64)
            first, second = x[t, :, i].double(), x[t, :, half + i].double()
            wanted[t, :, i] = first * angle.cos() - second * angle.sin()
            wanted[t, :, half + i] = second * angle.cos() + first * angle.sin()
    torch.testing.assert_close(found.double(), wanted, rtol=1e-3, atol=1e-3)
    assert torch.equal(found[0], x[0]), "position 0 does not turn"
    assert torch.equal(found[..., rotary_dim:], x[..., rotary_dim:])
    assert torch.equal(x, kept), "an input was changed"


def test_rotary_leaves_norms_alone() -> None:
    x = torch.randn(4, 2, 8)
    angle = torch.rand(4, 4)
    out = rotary(x, angle.cos(), angle.sin())
    torch.testing.assert_close(out.norm(dim=-1), x.norm(dim=-1))
