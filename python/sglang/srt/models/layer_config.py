"""All architectures, by the name in config.json (no torch).

A new family adds a module to `models/configs/` and its line here.
"""

from __future__ import annotations

from types import ModuleType

from sglang.srt.models.architecture import Architecture
from sglang.srt.models.configs import (
    bamba,
    falcon_h1,
    granite_moe_hybrid,
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
    granite_moe_hybrid,
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

ARCHITECTURES: dict[str, Architecture] = {
    name: architecture for family in FAMILIES for name, architecture in family.ARCHITECTURES.items()
}

# Known, and not served: why.
REFUSED: dict[str, str] = {
    "Zamba2ForCausalLM": "layers all over the model share one attention block, which would have to "
    "be on every pipeline stage",
}
