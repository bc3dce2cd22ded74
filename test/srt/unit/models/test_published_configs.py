"""Configs of published models read, and cost the memory that arithmetic by hand says they do.

A model is a file in `support/published/` with the fields that matter, and a row here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from sglang.srt.layers.linear import WeightFactory
from sglang.srt.mem_cache.layer_specs import AttentionSpec, MambaSpec
from sglang.srt.models.config import ModelConfig
from sglang.srt.models.registry import model_class

PUBLISHED = Path(__file__).parents[2] / "support" / "published"


@dataclass(frozen=True)
class Expected:
    """Bytes of keys and values a token, of states a request, with 2 bytes a value, 4 a value of a
    recurrent state; parameters in billions, as many digits as the model's authors give."""

    name: str
    kv_bytes_per_token: int
    state_bytes_per_request: int
    parameters: str | None = None


MODELS = [
    # 12 of 48 layers attend: 2 heads of 256 + 256. 36 delta nets: 2 * 16 * 128 + 32 * 128 = 8192
    # channels with 3 past inputs, 32 matrices of 128 * 128: 49152 + 2097152 = 2146304.
    Expected("qwen3-next-80b-a3b", 12 * 2 * 512 * 2, 36 * 2146304, "80"),
    # 10 of 40 layers attend; delta nets as above.
    Expected("qwen3.5-35b-a3b", 10 * 2 * 512 * 2, 30 * 2146304, "35"),
    # 6 of 16 layers attend: 8 heads of 64 + 64. 10 convolutions: 2 past inputs of 1024 channels.
    Expected("lfm2-350m", 6 * 8 * 128 * 2, 10 * 2 * 1024 * 2, "0.35"),
    # The same with 2048 channels.
    Expected("lfm2-1.2b", 6 * 8 * 128 * 2, 10 * 2 * 2048 * 2, "1.2"),
    # 6 of 24 layers attend.
    Expected("lfm2-8b-a1b", 6 * 8 * 128 * 2, 18 * 2 * 2048 * 2, "8.3"),
    # 4 of 32 layers attend: 8 heads of 128 + 128. 28 Mamba layers: 8192 channels with 3 past
    # inputs and 16 values of state: 49152 + 524288 = 573440.
    Expected("jamba-v0.1", 4 * 8 * 256 * 2, 28 * 573440, "52"),
    # 9 of 72 layers attend. 63 Mamba layers of 16384 channels: 98304 + 1048576 = 1146880.
    Expected("jamba-1.5-large", 9 * 8 * 256 * 2, 63 * 1146880, "398"),
    # 48 layers attend: 4 heads of 128 + 128.
    Expected("qwen3-30b-a3b", 48 * 4 * 256 * 2, 0, "30.5"),
    Expected("qwen3-235b-a22b", 94 * 4 * 256 * 2, 0, "235"),
    # 8 of 32 layers attend: 30 heads of 128 + 128. 24 delta nets of 30 heads with keys of
    # 0.75 * 3840 / 30 = 96 and values of 192: 2 * 2880 + 5760 = 11520 channels with 3 past inputs,
    # 30 matrices of 96 * 192: 69120 + 2211840 = 2280960.
    Expected("olmo-hybrid-7b", 8 * 30 * 256 * 2, 24 * 2280960, "7"),
    # 24 Mamba-2 layers: 2 * 768 + 2 * 128 = 1792 channels with 3 past inputs, 24 matrices of
    # 64 * 128: 10752 + 786432 = 797184.
    Expected("mamba2-130m", 0, 24 * 797184, "0.13"),
    # 48 of them: 4096 + 256 = 4352 channels, 64 matrices: 26112 + 2097152 = 2123264.
    Expected("mamba2-1.3b", 0, 48 * 2123264, "1.3"),
    # 64 of them: 5120 + 256 = 5376 channels, 80 matrices: 32256 + 2621440 = 2653696.
    Expected("mamba2-2.7b", 0, 64 * 2653696, "2.7"),
    # 3 of 32 layers attend: 8 heads of 128 + 128. 29 Mamba-2 layers: 8192 + 256 = 8448 channels
    # with 3 past inputs, 128 matrices of 64 * 128: 50688 + 4194304 = 4244992.
    Expected("bamba-9b-v1", 3 * 8 * 256 * 2, 29 * 4244992, "9.8"),
    # 4 of 40 layers attend: 4 heads of 128 + 128. 36 Mamba-2 layers: 3072 + 256 = 3328 channels, 48
    # matrices of 64 * 128: 19968 + 1572864 = 1592832.
    Expected("granite-4.0-h-tiny", 4 * 4 * 256 * 2, 36 * 1592832, "7"),
    # 8 heads of 64 + 64. 4096 + 256 = 4352 channels, 64 matrices, as mamba2-1.3b.
    Expected("granite-4.0-h-micro", 4 * 8 * 128 * 2, 36 * 2123264, "3"),
    # 36 layers, each with 2 heads of 64 + 64, and 1536 + 256 = 1792 channels and 24 matrices of
    # 64 * 128, as mamba2-130m.
    Expected("falcon-h1-0.5b", 36 * 2 * 128 * 2, 36 * 797184, "0.5"),
    # 24 layers, each with 2 heads of 128 + 128, and 3072 + 512 = 3584 channels with 3 past inputs
    # and 48 matrices of 64 * 256: 21504 + 3145728 = 3167232.
    Expected("falcon-h1-1.5b", 24 * 2 * 256 * 2, 24 * 3167232, "1.5"),
    # 4 of 52 layers attend: 8 heads of 128 + 128. 24 Mamba-2 layers: 7168 + 2 * 8 * 128 = 9216
    # channels with 3 past inputs, 112 matrices of 64 * 128: 55296 + 3670016 = 3725312.
    Expected("nemotron-h-4b", 4 * 8 * 256 * 2, 24 * 3725312, "4"),
    # 4 of 52 layers attend: 8 heads of 128 + 128. 24 Mamba-2 layers: 8192 + 2 * 8 * 128 = 10240
    # channels with 3 past inputs, 128 matrices of 64 * 128: 61440 + 4194304 = 4255744.
    Expected("nemotron-h-8b", 4 * 8 * 256 * 2, 24 * 4255744, "8"),
    # 4 of 56 layers attend. 27 Mamba-2 layers: 10240 + 2048 = 12288 channels, 128 matrices of
    # 80 * 128: 73728 + 5242880 = 5316608.
    Expected("nemotron-nano-9b-v2", 4 * 8 * 256 * 2, 27 * 5316608, "9"),
    # 6 of 52 layers attend: 2 heads of 128 + 128. 23 Mamba-2 layers: 4096 + 2048 = 6144 channels,
    # 64 matrices of 64 * 128: 36864 + 2097152 = 2134016.
    Expected("nemotron-3-nano-30b-a3b", 6 * 2 * 256 * 2, 23 * 2134016, "31.6"),
    # Dense: layers * heads * (keys + values) * 2 bytes.
    Expected("llama-3.2-1b", 16 * 8 * 128 * 2, 0, "1.24"),
    Expected("llama-3.1-8b", 32 * 8 * 256 * 2, 0, "8.03"),
    Expected("qwen2.5-0.5b", 24 * 2 * 128 * 2, 0, "0.49"),
    Expected("qwen2.5-7b", 28 * 4 * 256 * 2, 0, "7.61"),
    Expected("qwen3-0.6b", 28 * 8 * 256 * 2, 0, "0.6"),
    Expected("qwen3-8b", 36 * 8 * 256 * 2, 0, "8.2"),
    Expected("mistral-7b-v0.3", 32 * 8 * 256 * 2, 0, "7.2"),
    Expected("smollm2-135m", 30 * 3 * 128 * 2, 0, "0.135"),
]


def published(name: str, folder: Path) -> ModelConfig:
    config = json.loads((PUBLISHED / f"{name}.json").read_text())["config"]
    (folder / "config.json").write_text(json.dumps(config))
    return ModelConfig.from_path(str(folder))


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_memory_of_a_published_model(model: Expected, tmp_path: Path) -> None:
    specs = [spec for layer in published(model.name, tmp_path).layer_specs for spec in layer]
    kv = sum(spec.bytes_per_token(2) for spec in specs if isinstance(spec, AttentionSpec))
    states = sum(spec.bytes_per_slot(2, 4) for spec in specs if isinstance(spec, MambaSpec))
    assert kv == model.kv_bytes_per_token
    assert states == model.state_bytes_per_request


@pytest.mark.parametrize(
    "model", [model for model in MODELS if model.parameters], ids=lambda model: model.name
)
def test_parameters_of_a_published_model(model: Expected, tmp_path: Path) -> None:
    """The class has as many weights as the model's authors say, without memory for any."""
    config = published(model.name, tmp_path)
    factory = WeightFactory(torch.bfloat16, "meta")
    made = model_class(config.architecture)(config, (0, config.num_layers), factory)
    count = sum(weight.numel() for weight in made.targets().values())
    digits = len(str(model.parameters).partition(".")[2])
    # Some round, some cut off.
    assert abs(count / 1e9 - float(str(model.parameters))) < 10**-digits


def test_every_published_model_has_a_row() -> None:
    assert {path.stem for path in PUBLISHED.glob("*.json")} == {model.name for model in MODELS}
