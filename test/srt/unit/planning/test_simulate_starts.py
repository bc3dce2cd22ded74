"""The tool that simulates server starts, on a few of them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

TOOL = Path(__file__).resolve().parents[4] / "tools/simulate_starts.py"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("simulate_starts", TOOL)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("stage", ["linear only", "weak attention", "attention only"])
@pytest.mark.parametrize("noise", [0.02, 0.10])
def test_a_start_never_switches_off_and_predicts_within_five_percent(
    tool: ModuleType, stage: str, noise: float
) -> None:
    rngs = [np.random.default_rng(1000 + seed) for seed in range(20)]
    starts = [tool.start_here(tool.STAGES[stage], noise, rng) for rng in rngs]
    assert all(start.errors is not None for start in starts)
    assert np.median([e for start in starts for e in start.errors]) < 0.05


def test_the_quadratic_is_switched_off_by_chance_on_a_linear_stage(tool: ModuleType) -> None:
    rngs = [np.random.default_rng(seed) for seed in range(100)]
    starts = [tool.start_quadratic(tool.STAGES["linear only"], 0.02, rng) for rng in rngs]
    assert 30 <= sum(start.errors is None for start in starts) <= 70
