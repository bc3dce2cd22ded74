"""Families of models, each with random-weight shapes that its tests run on.

A module of this package describes one family as `FAMILY`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import torch
import transformers

from sglang.srt.mem_cache.layer_specs import AttentionSpec
from sglang.srt.models.config import ModelConfig
from support.tiny_models import shared_folder, spread_weights, write_tokenizer


@dataclass(frozen=True)
class Family:
    """A family: its class and config in `transformers`, and at least two unlike shapes.

    shapes: by name, what the config is made with. common: fields that all shapes share.
    """

    architecture: str
    config: str
    shapes: Mapping[str, Mapping[str, Any]]
    common: Mapping[str, Any] = field(default_factory=dict)


# Fields of every shape unless it says otherwise.
BASE = {"vocab_size": 300, "eos_token_id": 258, "bos_token_id": 256, "pad_token_id": 256,
        "max_position_embeddings": 2048}  # fmt: skip


@cache
def families() -> dict[str, Family]:
    """All families, by the name of their module."""
    return {
        module.name: import_module(f"{__name__}.{module.name}").FAMILY
        for module in iter_modules(__path__)
    }


def family_shapes() -> list[tuple[str, str]]:
    """(family, shape) of all."""
    return [(name, shape) for name, family in families().items() for shape in family.shapes]


@cache
def family_model(name: str, shape: str) -> Path:
    """A checkpoint with random weights, written by `transformers`, shared by a run's tests."""
    family = families()[name]
    folder = shared_folder(f"{name}-{shape}")
    config_class: Any = getattr(transformers, family.config)
    model_class: Any = getattr(transformers, family.architecture)
    torch.manual_seed(0)
    model = model_class(config_class(**{**BASE, **family.common, **family.shapes[shape]}))
    spread_weights(model)
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def split_without_attention(folder: Path) -> str | None:
    """A partition with a stage that has no attention layer, if there is such a layer."""
    config = ModelConfig.from_path(str(folder))
    plain = [
        layer
        for layer, specs in enumerate(config.layer_specs)
        if not any(isinstance(spec, AttentionSpec) for spec in specs)
    ]
    if not plain or config.num_layers < 2:
        return None
    bounds = sorted({0, plain[0], plain[0] + 1, config.num_layers})
    return ",".join(str(b - a) for a, b in itertools.pairwise(bounds))
