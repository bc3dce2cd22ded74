"""Each stage reads its slice, all of it and nothing else; what does not fit is named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from sglang.srt.model_executor import loader
from sglang.srt.model_executor.loader import LoadError
from sglang.srt.model_executor.model_runner import ModelRunner
from sglang.srt.models.config import ModelConfig
from sglang.srt.platform import Platform
from support.tiny_models import shared_model

Tensors = dict[str, torch.Tensor]


def load(folder: Path, start: int = 0, end: int = 4, load_format: str = "auto") -> ModelRunner:
    runner = ModelRunner(ModelConfig.from_path(str(folder)), (start, end), Platform("cpu"))
    runner.load(load_format, 0)
    return runner


def changed(tmp_path: Path, change: Callable[[Tensors], Any], shape: str = "small") -> Path:
    """A copy of a checkpoint with its tensors changed."""
    folder = tmp_path / "changed"
    shutil.copytree(shared_model(shape), folder)
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_a_missing_tensor_is_named_by_the_stage_that_needs_it(tmp_path: Path) -> None:
    name = "model.layers.1.linear_attn.A_log"
    folder = changed(tmp_path, lambda tensors: tensors.pop(name))
    for start, end in ((0, 4), (0, 2), (1, 2)):
        with pytest.raises(LoadError, match=f"lacks 1 tensor.*{name}"):
            load(folder, start, end)
    load(folder, 2, 4)


def test_a_tensor_of_the_wrong_shape_is_named_with_both_shapes(tmp_path: Path) -> None:
    name = "model.layers.3.self_attn.k_proj.weight"

    def shrink(tensors: Tensors) -> None:
        tensors[name] = tensors[name][:-1].clone()

    folder = changed(tmp_path, shrink)
    with pytest.raises(LoadError, match=rf"{name} has shape \[63, 64\].*\[64, 64\]"):
        load(folder, 2, 4)
    load(folder, 0, 3)


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.linear_attn.in_proj_qkv.weight_scale_inv",  # of a quantised checkpoint
        "model.layers.4.mlp.up_proj.weight",  # one layer too many
        "model.layers.3.self_attn.sinks",
        "something.else",
    ],
)
def test_nothing_of_the_slice_is_left_over(tmp_path: Path, name: str) -> None:
    folder = changed(tmp_path, lambda tensors: tensors.update({name: torch.zeros(2)}))
    with pytest.raises(LoadError, match=f"holds {name}, which the model does not have"):
        load(folder)


@pytest.mark.parametrize("prefix", ["mtp.", "model.visual."])
def test_drafts_and_vision_are_left_out_on_purpose(tmp_path: Path, prefix: str) -> None:
    extra = {f"{prefix}layers.0.weight": torch.zeros(2)}
    load(changed(tmp_path, lambda tensors: tensors.update(extra)))


def test_a_stage_reads_its_own_tensors_only(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = shared_model("small")
    read: list[str] = []
    copy = loader._copy

    def recording(target: torch.Tensor, value: torch.Tensor, name: str) -> None:
        read.append(name)
        copy(target, value, name)

    monkeypatch.setattr(loader, "_copy", recording)
    load(folder, 1, 3)
    assert read and all(name.startswith(("model.layers.1.", "model.layers.2.")) for name in read)
    read.clear()
    load(folder, 3, 4)
    ends = {name for name in read if not name.startswith("model.layers.3.")}
    assert ends == {"model.norm.weight", "model.embed_tokens.weight"}  # tied: the head


@pytest.mark.parametrize("shape", ["small", "untied"])
@pytest.mark.parametrize("options", [{}, {"multimodal": True}], ids=str)
def test_stages_together_hold_the_model_once(shape: str, options: dict[str, Any]) -> None:
    folder = shared_model(shape, **options)
    whole = load(folder).weight_bytes
    stages = [load(folder, i, i + 1).weight_bytes for i in range(4)]
    config = ModelConfig.from_path(str(folder))
    copy_of_embedding = config.vocab_size * config.hidden_size * 4
    assert sum(stages) == whole + (copy_of_embedding if config.tie_word_embeddings else 0)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "sharded"
    shutil.copytree(shared_model("small", max_shard_size="40KB"), folder)
    victim = sorted(folder.glob("*.safetensors"))[1]
    victim.unlink()
    with pytest.raises(LoadError, match=f"lacks {victim.name}"):
        load(folder)


def test_a_folder_without_weights_and_one_with_a_cut_file(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(shared_model("small"), folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    with pytest.raises(LoadError, match="cannot be read"):
        load(folder)
    weights.unlink()
    with pytest.raises(LoadError, match="lacks safetensors"):
        load(folder)


def test_dummy_weights_need_no_file_and_do_not_depend_on_the_split(tmp_path: Path) -> None:
    for name in ("config.json", "generation_config.json"):
        if (shared_model("small") / name).is_file():
            shutil.copy(shared_model("small") / name, tmp_path)
    whole = load(tmp_path, load_format="dummy").model.targets()
    assert whole
    for start, end in ((0, 2), (2, 3), (3, 4)):
        for name, part in load(tmp_path, start, end, "dummy").model.targets().items():
            assert torch.equal(part, whole[name]), name
            assert torch.isfinite(part).all()


def test_the_index_decides_which_files_are_read(tmp_path: Path) -> None:
    """A folder may also hold a consolidated copy of the weights."""
    folder = tmp_path / "model"
    shutil.copytree(shared_model("small", max_shard_size="40KB"), folder)
    save_file({"rubbish": torch.zeros(1)}, folder / "consolidated.safetensors")
    load(folder)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 2
