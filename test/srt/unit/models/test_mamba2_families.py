"""What published checkpoints of the Mamba-2 families spell differently from those written here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sglang.srt.models.bamba import BambaForCausalLM
from sglang.srt.models.causal_lm import CausalLM
from sglang.srt.models.config import ModelConfig
from sglang.srt.models.configs.bamba import mamba_head_dim, rotary_dim
from sglang.srt.models.configs.mamba2 import dt_limit
from sglang.srt.models.mamba2 import Mamba2ForCausalLM
from sglang.srt.models.nemotron_h import NemotronHForCausalLM

PUBLISHED = Path(__file__).parents[2] / "support" / "published"


@pytest.mark.parametrize(
    ("model", "theirs", "ours"),
    [
        (Mamba2ForCausalLM, "backbone.embedding.weight", "model.embed_tokens.weight"),
        (Mamba2ForCausalLM, "backbone.embeddings.weight", "model.embed_tokens.weight"),
        (Mamba2ForCausalLM, "backbone.norm_f.weight", "model.norm.weight"),
        (Mamba2ForCausalLM, "backbone.layers.3.mixer.D", "model.layers.3.mixer.D"),
        (NemotronHForCausalLM, "backbone.embeddings.weight", "model.embed_tokens.weight"),
        (NemotronHForCausalLM, "model.embeddings.weight", "model.embed_tokens.weight"),
        (NemotronHForCausalLM, "backbone.norm_f.weight", "model.norm.weight"),
        (NemotronHForCausalLM, "model.norm_f.weight", "model.norm.weight"),
        (NemotronHForCausalLM, "backbone.layers.0.norm.weight", "model.layers.0.norm.weight"),
        (BambaForCausalLM, "model.final_layernorm.weight", "model.norm.weight"),
    ],
)
def test_names_in_checkpoints(model: type[CausalLM], theirs: str, ours: str) -> None:
    assert model.canonical_name(theirs) == ours


@pytest.mark.parametrize(
    ("limits", "wanted"),
    [
        (None, (0.0, float("inf"))),
        ([0.0, float("inf")], (0.0, float("inf"))),
        ([0.0, {"__float__": "Infinity"}], (0.0, float("inf"))),
        ([0.001, 0.1], (0.001, 0.1)),
    ],
)
def test_bounds_of_steps_in_all_spellings(
    limits: list[object] | None, wanted: tuple[float, float]
) -> None:
    assert dt_limit({"time_step_limit": limits}) == wanted


def read(name: str, folder: Path, **change: object) -> ModelConfig:
    config = {**json.loads((PUBLISHED / f"{name}.json").read_text())["config"], **change}
    (folder / "config.json").write_text(json.dumps(config))
    return ModelConfig.from_path(str(folder))


def test_bamba_rotates_half_of_a_head(tmp_path: Path) -> None:
    """With `attn_rotary_emb`, without it, and as `transformers` writes it."""
    assert rotary_dim(read("bamba-9b-v1", tmp_path).text) == 64
    assert rotary_dim(read("bamba-9b-v1", tmp_path, attn_rotary_emb=None).text) == 64
    rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}
    config = read("bamba-9b-v1", tmp_path, attn_rotary_emb=None, rope_parameters=rope)
    assert rotary_dim(config.text) == 32


def test_width_of_a_head_may_be_left_to_the_layer(tmp_path: Path) -> None:
    for value in ("auto", None):
        assert mamba_head_dim(read("bamba-9b-v1", tmp_path, mamba_d_head=value).text) == 64
        assert mamba_head_dim(read("falcon-h1-0.5b", tmp_path, mamba_d_head=value).text) == 64


def test_nemotron_names_its_layers_by_letters_or_words(tmp_path: Path) -> None:
    letters = read("nemotron-3-nano-30b-a3b", tmp_path)
    words = read(
        "nemotron-3-nano-30b-a3b",
        tmp_path,
        hybrid_override_pattern=None,
        num_hidden_layers=None,
        layers_block_type=letters.text["layer_types"],
    )
    assert words.layer_specs == letters.layer_specs
    assert words.num_layers == 52
