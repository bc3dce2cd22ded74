"""The compiled CPU kernels equal their torch references."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from sglang.srt.kernels import registry
from sglang.srt.kernels.batch_layout import DecodeLayout
from sglang.srt.kernels.cpu import native
from sglang.srt.kernels.cpu.ops import MAX_DOT_ROWS
from sglang.srt.kernels.reference.gated_delta_step import GatedDeltaWeights

CLOSE = {"rtol": 2e-5, "atol": 2e-5}


@pytest.fixture(autouse=True)
def _seed() -> Iterator[None]:
    torch.manual_seed(0)
    yield


def both(name: str) -> tuple[Any, Any]:
    """The compiled kernel and its reference."""
    kernels = registry.cpu_kernels()
    if not kernels:
        pytest.skip("the CPU kernels are not built here: no C++ compiler, or no AVX2")
    return kernels[name], registry.REFERENCE[name]


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 8, 16, 31, MAX_DOT_ROWS, MAX_DOT_ROWS + 1, 100])
@pytest.mark.parametrize(("inputs", "outputs"), [(64, 8), (768, 33), (100, 7), (5, 3), (8, 1)])
def test_linear(rows: int, inputs: int, outputs: int) -> None:
    kernel, reference = both("linear")
    wide = torch.randn(rows, inputs + 5)
    x, weight = wide[:, 2 : inputs + 2], torch.randn(outputs, inputs) * inputs**-0.5
    for bias in (None, torch.randn(outputs)):
        for stored in (weight, weight.bfloat16()):
            expected = reference(x, stored, bias)
            assert expected.dtype == torch.float32
            torch.testing.assert_close(kernel(x, stored, bias), expected, **CLOSE)


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    """Bit for bit: batching cannot change a token."""
    kernel, _ = both("linear")
    x, weight = torch.randn(MAX_DOT_ROWS, 300), torch.randn(50, 300)
    together = kernel(x, weight, None)
    for row in range(MAX_DOT_ROWS):
        assert torch.equal(kernel(x[row : row + 1], weight, None)[0], together[row])


@pytest.mark.parametrize("dim", [8, 64, 100, 3, 768])
def test_norms(dim: int) -> None:
    kernel, reference = both("rms_norm")
    weight = torch.randn(dim)
    merged = torch.randn(7, 3 * dim + 4)
    heads = merged[:, : 3 * dim].view(7, 3, dim) if dim == 3 else merged[:, 4:].view(7, 3, dim)
    for x in (torch.randn(5, dim), heads, heads.transpose(0, 1), torch.zeros(2, dim)):
        torch.testing.assert_close(kernel(x, weight, 1e-6), reference(x, weight, 1e-6), **CLOSE)
    kernel, reference = both("gated_rms_norm")
    x, gate = torch.randn(7, 3, dim), heads * 3
    expected = reference(x, gate, weight, 1e-5)
    torch.testing.assert_close(kernel(x, gate, weight, 1e-5), expected, **CLOSE)


@pytest.mark.parametrize("n", [1, 7, 8, 96, 100])
def test_silu_and_mul(n: int) -> None:
    """Also where e^-x overflows or vanishes."""
    kernel, reference = both("silu_and_mul")
    x = torch.randn(9, 2 * n) * 20
    x[0] = 1e4
    x[1] = -1e4
    x[2] = 0.0
    torch.testing.assert_close(kernel(x), reference(x), **CLOSE)


@pytest.mark.parametrize(("dim", "half"), [(32, 4), (32, 16), (20, 5)])
def test_rotary(dim: int, half: int) -> None:
    kernel, reference = both("rotary")
    x = torch.randn(6, 4, 2 * dim)[..., :dim]
    angles = torch.rand(6, half) * 100
    cos, sin = angles.cos(), angles.sin()
    torch.testing.assert_close(kernel(x, cos, sin), reference(x, cos, sin), **CLOSE)


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 2), (3, 3), (8, 1)])
@pytest.mark.parametrize(("dim", "v_dim"), [(32, 32), (64, 24), (12, 12)])
def test_attention_decode(heads: int, kv_heads: int, dim: int, v_dim: int) -> None:
    """Rows of very unequal length over scattered slots; what no row holds is poisoned."""
    kernel, reference = both("attention_decode")
    lens = (1, 63, 64, 65, 300, 129)
    slots = torch.randperm(1000)[: sum(lens)].split(lens)
    table = torch.zeros(9, 400, dtype=torch.int32)
    keys, values = torch.full((1001, kv_heads, dim), 1e9), torch.full((1001, kv_heads, v_dim), 1e9)
    rows = (3, 1, 8, 2, 5, 7)
    for row, own in zip(rows, slots, strict=True):
        table[row, : len(own)] = own.int()
        keys[own] = torch.randn(len(own), kv_heads, dim) * 3
        values[own] = torch.randn(len(own), kv_heads, v_dim)
    q = torch.randn(len(rows), heads, dim)
    layout = DecodeLayout(table, rows, lens, "cpu")
    found = kernel(q, (keys, values), layout, dim**-0.5)
    expected = reference(q, (keys, values), layout, dim**-0.5)
    torch.testing.assert_close(found, expected, **CLOSE)


@pytest.mark.parametrize(
    ("key_heads", "value_heads", "key_dim", "value_dim", "kernel_size"),
    [(2, 4, 16, 16, 4), (3, 3, 64, 64, 4), (1, 6, 8, 24, 2), (2, 2, 32, 40, 3), (2, 2, 12, 16, 4)],
)
def test_gated_delta_step(
    key_heads: int, value_heads: int, key_dim: int, value_dim: int, kernel_size: int
) -> None:
    kernel, reference = both("gated_delta_step")
    channels = 2 * key_heads * key_dim + value_heads * value_dim
    weights = GatedDeltaWeights(
        conv=torch.randn(channels, kernel_size),
        decay_rate=-torch.rand(value_heads) * 4,
        dt_bias=torch.randn(value_heads),
        norm=torch.rand(value_dim) + 0.5,
        eps=1e-6,
        key_heads=key_heads,
        value_heads=value_heads,
        key_dim=key_dim,
        value_dim=value_dim,
    )
    conv = torch.randn(9, channels, kernel_size - 1)
    states = torch.randn(9, value_heads, key_dim, value_dim)
    ours, theirs = (conv.clone(), states.clone()), (conv.clone(), states.clone())
    slots = torch.tensor([4, 1, 8])
    for step in range(3):
        x = torch.randn(3, sum(weights.part_sizes) + 3)[:, : sum(weights.part_sizes)] * (step + 1)
        found = kernel(x, weights, *ours, slots)
        torch.testing.assert_close(found, reference(x, weights, *theirs, slots), **CLOSE)
    for a, b, before in zip(ours, theirs, (conv, states), strict=True):
        torch.testing.assert_close(a, b, **CLOSE)
        others = [i for i in range(9) if i not in slots]
        assert torch.equal(a[others], before[others]), "other requests' states are left alone"


def test_16_bit_inputs_go_to_the_reference() -> None:
    kernel, reference = both("linear")
    x, weight = torch.randn(2, 16).bfloat16(), torch.randn(4, 16).bfloat16()
    assert torch.equal(kernel(x, weight, None), reference(x, weight, None))
    kernel, reference = both("rms_norm")
    assert torch.equal(kernel(x, torch.ones(16), 1e-6), reference(x, torch.ones(16), 1e-6))


@pytest.mark.parametrize("choice", ["auto", "native", "reference"])
def test_missing_kernels_are_said_or_refused(
    choice: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def nothing() -> None:
        raise native.NativeMissing("there is no compiler")

    monkeypatch.setenv("SGLANG_CPU_KERNELS", choice)
    monkeypatch.setattr(registry, "cpu_ops", nothing)
    registry.cpu_kernels.cache_clear()
    try:
        if choice == "native":
            with pytest.raises(native.NativeMissing, match="no compiler"):
                registry.get_op("linear", "cpu")
        else:
            assert registry.get_op("linear", "cpu") is registry.REFERENCE["linear"]
        assert ("no compiler" in caplog.text) == (choice == "auto")
    finally:
        monkeypatch.undo()
        registry.cpu_kernels.cache_clear()
