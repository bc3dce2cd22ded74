"""Experts one by one and stacked in a checkpoint load into the same weights."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from sglang.srt.model_executor.loader import LoadError
from sglang.srt.model_executor.model_runner import ModelRunner
from sglang.srt.models.config import ModelConfig
from sglang.srt.platform import Platform
from support.families import family_model
from support.oracle import oracle_model
from support.tiny_models import shared_folder

# Families with experts, each in a shape that has some.
MODELS = [("qwen3_next", "all_experts"), ("qwen3_5_moe", "small"), ("qwen3_moe", "some_mlps"),
          ("lfm2_moe", "bias"), ("jamba", "experts")]  # fmt: skip
Tensors = dict[str, torch.Tensor]


@cache
def stacked(family: str, shape: str) -> Path:
    """The checkpoint of a family's shape as `transformers` holds it in memory."""
    single = family_model(family, shape)
    folder = shared_folder(f"{family}-{shape}-stacked")
    oracle_model(single).save_pretrained(folder, save_original_format=False)
    return folder


def weights(folder: Path, start: int, end: int, load_format: str = "auto") -> Tensors:
    runner = ModelRunner(ModelConfig.from_path(str(folder)), (start, end), Platform("cpu"))
    runner.load(load_format, 0)
    return runner.model.targets()


def names(folder: Path) -> set[str]:
    return set(load_file(folder / "model.safetensors"))


@pytest.mark.parametrize(("family", "shape"), MODELS)
def test_both_spellings_load_into_the_same_weights(family: str, shape: str) -> None:
    single, all_in_one = family_model(family, shape), stacked(family, shape)
    assert any(".experts.1." in name for name in names(single))
    assert any(name.endswith("experts.gate_up_proj") for name in names(all_in_one))
    layers = ModelConfig.from_path(str(single)).num_layers
    for start, end in ((0, layers), (0, 2), (2, layers), (1, 2)):
        wanted, found = weights(single, start, end), weights(all_in_one, start, end)
        assert wanted.keys() == found.keys()
        assert all(torch.equal(wanted[name], found[name]) for name in wanted)


@pytest.mark.parametrize(("family", "shape"), MODELS)
def test_dummy_weights_are_the_same_for_any_split(family: str, shape: str) -> None:
    folder = family_model(family, shape)
    layers = ModelConfig.from_path(str(folder)).num_layers
    whole = weights(folder, 0, layers, "dummy")
    for start, end in ((0, 1), (1, 3), (3, layers)):
        for name, part in weights(folder, start, end, "dummy").items():
            assert torch.equal(part, whole[name]), name


def changed(tmp_path: Path, source: Path, name: str, value: torch.Tensor) -> Path:
    folder = tmp_path / "changed"
    shutil.copytree(source, folder)
    tensors = load_file(folder / "model.safetensors")
    tensors[name] = value
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((8, 47, 64), "47 rows are not those of gate_proj and up_proj"),
        ((8, 46, 64), r"has shape \[23, 64\].*\[24, 64\]"),
        ((9, 48, 64), "which the model does not have"),
        ((7, 48, 64), "lacks 2 tensor"),
    ],
)
def test_a_stack_that_does_not_fit_is_named(
    tmp_path: Path, shape: tuple[int, ...], message: str
) -> None:
    name = "model.layers.1.mlp.experts.gate_up_proj"
    folder = changed(tmp_path, stacked("qwen3_next", "all_experts"), name, torch.zeros(shape))
    with pytest.raises(LoadError, match=message):
        weights(folder, 0, 4)


def test_interleaved_projections_that_do_not_fit_are_named(tmp_path: Path) -> None:
    name = "model.layers.0.linear_attn.in_proj_ba.weight"
    source = family_model("qwen3_next", "all_experts")
    folder = changed(tmp_path, source, name, torch.zeros(7, 64))
    with pytest.raises(LoadError, match=f"{name} has shape.*does not fit"):
        weights(folder, 0, 4)
