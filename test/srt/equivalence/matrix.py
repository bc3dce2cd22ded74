"""The settings that must not change a token, and a choice of them that covers all pairs."""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import combinations, product
from typing import Any

# Values of each dimension of `Case`, in the order of its fields.
MODELS = ("small", "untied", "deep")
PP_SIZES = (1, 2, 3, 4)
CHUNKS: tuple[int | str, ...] = (7, 64, 100, -1, "dynamic")
CACHES = ("off", "no_buffer", "extra_buffer")
PAGE_SIZES = (1, 16)
MIXED = (False, True)
ASYNC_DEPTHS = (0, 1, 2)
LOADS = ("alone", "together", "aborts", "retraction")
DIMENSIONS: tuple[tuple[Any, ...], ...] = (
    MODELS,
    PP_SIZES,
    CHUNKS,
    CACHES,
    PAGE_SIZES,
    MIXED,
    ASYNC_DEPTHS,
    LOADS,
)

Group = tuple[int, ...]  # dimensions, by number

# Splits of the eight layers of "deep" that leave stages without attention or without linear layers.
UNEVEN = {1: "8", 2: "3,5", 3: "1,6,1", 4: "3,1,1,3"}


@dataclass(frozen=True)
class Case:
    """One combination. `chunk`: static size (rounded up to pages), -1 for none, or "dynamic"."""

    model: str
    pp_size: int
    chunk: int | str
    cache: str
    page_size: int
    mixed: bool
    async_depth: int
    load: str

    def __str__(self) -> str:
        return (
            f"{self.model}-pp{self.pp_size}-chunk{self.chunk}-{self.cache}-page{self.page_size}"
            f"{'-mixed' if self.mixed else ''}-async{self.async_depth}-{self.load}"
        )


assert len(fields(Case)) == len(DIMENSIONS)


def all_cases() -> list[Case]:
    """The full product."""
    return [Case(*values) for values in product(*DIMENSIONS)]


def covering(strength: int) -> list[Case]:
    """Cases in which any `strength` dimensions together take all combinations of their values.

    Each case is built around a combination that is still missing; every other dimension then takes
    the value that adds most missing ones (as in Cohen et al. 1997, doi:10.1109/32.605761).
    """
    groups = list(combinations(range(len(DIMENSIONS)), strength))
    missing = {(group, values): None for group in groups for values in product(*_values_of(group))}
    chosen = []
    while missing:
        group, values = next(iter(missing))
        fixed = dict(zip(group, values, strict=True))
        for dimension in range(len(DIMENSIONS)):
            if dimension not in fixed:
                fixed[dimension] = max(
                    DIMENSIONS[dimension],
                    key=lambda value: _gain({**fixed, dimension: value}, groups, missing),
                )
        for group in groups:
            missing.pop((group, tuple(fixed[i] for i in group)), None)
        chosen.append(Case(*(fixed[i] for i in range(len(DIMENSIONS)))))
    return chosen


def _values_of(group: Group) -> list[tuple[Any, ...]]:
    return [DIMENSIONS[i] for i in group]


def _gain(fixed: dict[int, Any], groups: list[Group], missing: dict[Any, None]) -> int:
    """How many missing combinations the dimensions fixed so far make up."""
    return sum(
        (group, tuple(fixed[i] for i in group)) in missing
        for group in groups
        if all(i in fixed for i in group)
    )
