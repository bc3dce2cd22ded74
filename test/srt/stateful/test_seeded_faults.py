"""Each fault in `support/seeded_faults.py` must be noticed, and nothing without one."""

from __future__ import annotations

import pytest

from support.scheduler_life import live
from support.seeded_faults import SCHEDULER_FAULTS, Fault

SEEDS = range(40)


def test_scheduler_life_without_fault_passes_under_pressure() -> None:
    """The same seeds, so that a fault is noticed for what it does; and they are no easy life."""
    retracted = evicted = reused = 0
    for seed in SEEDS:
        harness = live(seed)
        retracted += harness.scheduler.planner.num_retracted
        evicted += harness.memory.tree_cache.usage().counters.get("evicted_states", 0)
        reused += harness.memory.counters.cached_tokens
    assert retracted > 60 and evicted > 100 and reused > 1000


@pytest.mark.parametrize("fault", SCHEDULER_FAULTS, ids=lambda fault: fault.__name__)
def test_scheduler_life_with_seeded_fault_fails(fault: Fault) -> None:
    # AssertionError: a wrong answer or account; RuntimeError: MemoryViolation, SlotError, ...
    with fault(), pytest.raises((AssertionError, RuntimeError)):
        for seed in SEEDS:
            live(seed)
