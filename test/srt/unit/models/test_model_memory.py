"""`tools/model_memory.py`: what it prints adds up to the whole model on any number of stages."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch

from sglang.srt.models.config import ModelConfig
from support.families import family_model, family_shapes

TOOL = Path(__file__).parents[4] / "tools" / "model_memory.py"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("model_memory", TOOL)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("family", "shape"), family_shapes()[::3])
def test_stages_add_up(tool: ModuleType, family: str, shape: str) -> None:
    model = ModelConfig.from_path(str(family_model(family, shape)))
    ((_, weights, kv, state),) = tool.rows(model, 1, torch.float32)
    parts = tool.rows(model, 2, torch.float32)
    assert (sum(p[2] for p in parts), sum(p[3] for p in parts)) == (kv, state)
    twice = model.vocab_size * model.hidden_size * 4 if model.tie_word_embeddings else 0
    assert sum(p[1] for p in parts) == weights + twice, "tied embeddings are on both ends"
