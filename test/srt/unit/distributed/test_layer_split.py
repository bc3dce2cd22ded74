"""Which layers a stage gets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang.srt.distributed.layer_split import split_layers


@given(st.integers(1, 80), st.integers(1, 24), st.floats(0, 50))
def test_every_layer_is_somewhere_once(num_layers: int, pp_size: int, head: float) -> None:
    """SGLang 9798, 13282: remainder layers all on the last stage, or dropped."""
    if pp_size > num_layers:
        return
    ranges = split_layers([1.0] * num_layers, pp_size, head)
    assert [layer for a, b in ranges for layer in range(a, b)] == list(range(num_layers))
    sizes = [b - a for a, b in ranges]
    assert max(sizes) - min(sizes) <= 1


def test_the_slowest_stage_is_as_fast_as_it_can_be() -> None:
    assert split_layers([1.0] * 10, 3, head_cost=0.5) == [(0, 4), (4, 7), (7, 10)]
    assert split_layers([1, 1, 5, 1, 1, 1, 1], 2) == [(0, 3), (3, 7)]


def test_a_heavy_head_gets_fewer_layers() -> None:
    assert split_layers([1.0] * 9, 2, head_cost=2.0) == [(0, 5), (5, 9)]


def test_partition_is_taken_as_given() -> None:
    assert split_layers([1.0] * 8, 2, partition="5,3") == [(0, 5), (5, 8)]


@pytest.mark.parametrize(
    "partition, message",
    [("5", "names 1 stages"), ("5,4", "add up to the model's 8"), ("8,0", "must be positive"),
     ("a,b", "comma-separated")],
)  # fmt: skip
def test_bad_partition_is_refused(partition: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        split_layers([1.0] * 8, 2, partition=partition)


def test_more_stages_than_layers_is_refused() -> None:
    with pytest.raises(ValueError, match="--pp-size 5 needs at least 5 layers, the model has 4"):
        split_layers([1.0] * 4, 5)
