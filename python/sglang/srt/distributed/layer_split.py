"""Which layers a stage gets: pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

LayerRange = tuple[int, int]  # [start, end) in the model's layer numbers


def split_layers(
    costs: Sequence[float], pp_size: int, head_cost: float = 0.0, partition: str | None = None
) -> list[LayerRange]:
    """Contiguous layer ranges, one a stage.

    Stages differ by at most one layer; among those splits the one whose slowest stage is fastest
    is taken (`costs` per layer in any unit, `head_cost` for norm and LM head on the last stage),
    the first such split in order. `partition` ("5,3") overrides.

    Raises ValueError when there are fewer layers than stages, or when `partition` does not add up.
    """
    num_layers = len(costs)
    if pp_size > num_layers:
        raise ValueError(
            f"--pp-size {pp_size} needs at least {pp_size} layers, the model has {num_layers}"
        )
    if partition is not None:
        return _ranges(parse_partition(partition, num_layers, pp_size))
    small, num_large = divmod(num_layers, pp_size)
    best: tuple[float, list[int]] | None = None
    for large in combinations(range(pp_size), num_large):
        sizes = [small + (stage in large) for stage in range(pp_size)]
        loads = [sum(costs[a:b]) for a, b in _ranges(sizes)]
        loads[-1] += head_cost
        if best is None or max(loads) < best[0]:
            best = (max(loads), sizes)
        if pp_size > MAX_SEARCHED_STAGES:
            break
    assert best is not None
    return _ranges(best[1])


# C(16, 8) splits are searched in milliseconds; with more stages the first balanced split is taken.
MAX_SEARCHED_STAGES = 16


def parse_partition(partition: str, num_layers: int, pp_size: int) -> list[int]:
    """Layers per stage from "5,3". Raises ValueError naming the variable and what is wrong."""
    name = "SGLANG_PP_LAYER_PARTITION"
    try:
        sizes = [int(part) for part in partition.split(",")]
    except ValueError:
        raise ValueError(
            f"{name} must be comma-separated layer counts, got {partition!r}"
        ) from None
    if len(sizes) != pp_size:
        raise ValueError(f"{name}={partition} names {len(sizes)} stages, --pp-size is {pp_size}")
    if min(sizes) < 1 or sum(sizes) != num_layers:
        raise ValueError(
            f"{name}={partition} must be positive and add up to the model's {num_layers} layers"
        )
    return sizes


def _ranges(sizes: Sequence[int]) -> list[LayerRange]:
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return [(end - size, end) for end, size in zip(ends, sizes, strict=True)]
