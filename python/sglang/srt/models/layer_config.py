"""All architectures, by the name in config.json (no torch).

A new family adds a module to `models/configs/` and its line here.
"""

from __future__ import annotations

from types import ModuleType

from sglang.srt.models.architecture import Architecture
from sglang.srt.models.configs import (
    bamba,
    falcon_h1,
    granite_hybrid,
    jamba,
    lfm2,
    lfm2_moe,
    llama,
    mamba2,
    nemotron_h,
    olmo_hybrid,
    qwen3_5,
    qwen3_5_moe,
    qwen3_moe,
    qwen3_next,
)

FAMILIES: tuple[ModuleType, ...] = (
    bamba,
    falcon_h1,
    granite_hybrid,
    jamba,
    lfm2,
    lfm2_moe,
    llama,
    mamba2,
    nemotron_h,
    olmo_hybrid,
    qwen3_5,
    qwen3_5_moe,
    qwen3_moe,
    qwen3_next,
)

# Known, and not served: the name, and why.
REFUSED = {
    "Zamba2ForCausalLM": (
        "its attention block is shared by layers all over the model, so that every stage would "
        "need a copy of it and of its keys and values"
    ),
}

ARCHITECTURES: dict[str, Architecture] = {
    name: architecture for family in FAMILIES for name, architecture in family.ARCHITECTURES.items()
}
