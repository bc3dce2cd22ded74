"""Reading config.json: what can be served, what is refused and in which words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sglang.srt.mem_cache.layer_specs import AttentionSpec, MambaSpec
from sglang.srt.models.config import ModelConfig, ModelConfigError
from sglang.srt.models.rope_config import rope_settings

TEXT: dict[str, Any] = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
    "linear_conv_kernel_dim": 4,
    "max_position_embeddings": 2048,
}


def write(folder: Path, config: dict[str, Any], **files: Any) -> str:
    (folder / "config.json").write_text(json.dumps(config))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return str(folder)


def read(folder: Path, **changes: Any) -> ModelConfig:
    config = {**TEXT, **changes}
    return ModelConfig.from_path(
        write(folder, {key: value for key, value in config.items() if value is not None})
    )


def test_every_layer_declares_what_it_remembers(tmp_path: Path) -> None:
    model = read(tmp_path)
    assert (model.num_layers, model.hidden_size, model.vocab_size) == (8, 64, 300)
    attention, delta_net = AttentionSpec(2, 32, 32), MambaSpec(2 * 32 + 96, 4, (4, 16, 24))
    assert model.layer_specs == [
        (attention,) if layer % 4 == 3 else (delta_net,) for layer in range(8)
    ]


def test_layer_types_go_before_the_interval(tmp_path: Path) -> None:
    kinds = ["full_attention", *["linear_attention"] * 6, "full_attention"]
    model = read(tmp_path, layer_types=kinds, full_attention_interval=2)
    found = [isinstance(specs[0], AttentionSpec) for specs in model.layer_specs]
    assert found == [kind == "full_attention" for kind in kinds]
    every_second = read(tmp_path, full_attention_interval=2)
    assert sum(isinstance(s[0], AttentionSpec) for s in every_second.layer_specs) == 4


def test_the_text_part_of_a_multimodal_config(tmp_path: Path) -> None:
    text = {key: value for key, value in TEXT.items() if key != "architectures"}
    config = {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "text_config": {**text, "tie_word_embeddings": False, "eos_token_id": 7},
        "vision_config": {"hidden_size": 1},
        "tie_word_embeddings": True,
    }
    model = ModelConfig.from_path(
        write(tmp_path, config, generation_config={"eos_token_id": [9, 7]})
    )
    assert model.hidden_size == 64
    assert model.tie_word_embeddings, "the outer value is the one that the weights follow"
    assert model.eos_token_ids == [7, 9]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, (10000.0, 8)),
        ({"rope_theta": 1e7, "partial_rotary_factor": 0.5}, (1e7, 16)),
        ({"rope_parameters": {"rope_theta": 5e6, "partial_rotary_factor": 1.0}}, (5e6, 32)),
        ({"rope_scaling": {"type": "mrope", "mrope_section": [1, 2, 1]}}, (10000.0, 8)),
    ],
    ids=str,
)
def test_old_and_new_rope_fields(
    tmp_path: Path, fields: dict[str, Any], expected: tuple[float, int]
) -> None:
    settings = rope_settings(read(tmp_path, **fields).text)
    assert (settings.theta, settings.rotary_dim) == expected


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architectures": ["OtherForCausalLM"]}, ["OtherForCausalLM", "Qwen3_5ForCausalLM"]),
        ({"architectures": None}, ["none named"]),
        ({"linear_num_key_heads": None}, ["lacks linear_num_key_heads"]),
        ({"hidden_size": "64"}, ["hidden_size", "positive integer"]),
        ({"num_hidden_layers": 0}, ["num_hidden_layers", "positive integer"]),
        ({"num_attention_heads": 5}, ["num_attention_heads 5", "num_key_value_heads 2"]),
        ({"linear_num_value_heads": 3}, ["linear_num_value_heads 3"]),
        ({"hidden_act": "gelu"}, ["hidden_act", "gelu"]),
        ({"layer_types": ["full_attention"] * 3}, ["names 3 layers", "is 8"]),
        ({"layer_types": ["sliding_attention"] * 8}, ["layer_types", "sliding_attention"]),
        ({"rope_parameters": {"rope_type": "longrope"}}, ["rope_type", "longrope"]),
        ({"rope_parameters": {"rope_type": "yarn"}}, ["yarn", "positive factor, got None"]),
        ({"rope_scaling": {"type": "linear", "factor": -1}}, ["linear", "factor, got -1"]),
        ({"quantization_config": {"quant_method": "fp8"}}, ["quantization_config", "fp8"]),
    ],
    ids=str,
)
def test_what_cannot_be_served_is_named_in_one_line(
    tmp_path: Path, changes: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(ModelConfigError) as error:
        read(tmp_path, **changes)
    assert all(word in str(error.value) for word in words), error.value
    assert "\n" not in str(error.value)


def test_context_length_is_within_what_was_trained(tmp_path: Path) -> None:
    folder = write(tmp_path, TEXT)
    assert ModelConfig.from_path(folder).context_len == 2048
    assert ModelConfig.from_path(folder, 100).context_len == 100
    for wanted in (0, 2049):
        with pytest.raises(ModelConfigError, match=r"--context-length .*\[1, 2048\]"):
            ModelConfig.from_path(folder, wanted)


def test_a_folder_without_a_usable_config(tmp_path: Path) -> None:
    with pytest.raises(ModelConfigError, match=r"has no config\.json"):
        ModelConfig.from_path(str(tmp_path))
    (tmp_path / "config.json").write_text("{broken")
    with pytest.raises(ModelConfigError, match="is not JSON"):
        ModelConfig.from_path(str(tmp_path))
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(ModelConfigError, match="is not a JSON object"):
        ModelConfig.from_path(str(tmp_path))


@pytest.mark.parametrize("path", ["/no/such/folder", "./gone", "a/b/c", "nothing-of-this-name"])
def test_a_path_that_leads_nowhere(path: str) -> None:
    with pytest.raises(ModelConfigError, match="no such folder"):
        ModelConfig.from_path(path)


def test_a_hub_name_without_a_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    def offline(*_: Any, **__: Any) -> str:
        raise LocalEntryNotFoundError("cannot reach the hub\nand more lines")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(ModelConfigError) as error:
        ModelConfig.from_path("someone/some-model")
    assert "someone/some-model" in str(error.value) and "cannot reach the hub" in str(error.value)
    assert "\n" not in str(error.value)
    folder = write(tmp_path, TEXT)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: folder)
    assert ModelConfig.from_path("someone/some-model").path == tmp_path
