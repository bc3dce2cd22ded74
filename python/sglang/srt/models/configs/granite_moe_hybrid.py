"""Granite 4: Mamba-2 or attention, then an MLP for all tokens, beside experts if there are any."""

from __future__ import annotations

from sglang.srt.mem_cache.layer_specs import LayerSpecs
from sglang.srt.models.architecture import (
    Architecture,
    Config,
    check_choice,
    check_layer_types,
    derive_head_dim,
)
from sglang.srt.models.configs.bamba import (
    MAMBA_DEFAULTS,
    REQUIRED,
    attention_spec,
    check_mamba,
    mamba_spec,
)
from sglang.srt.models.rope_config import rope_settings


def has_rope(config: Config) -> bool:
    """Whether attention knows positions."""
    return bool(config["position_embedding_type"] == "rope")


def layer_specs(config: Config) -> list[LayerSpecs]:
    """One or the other, by `layer_types`."""
    attention, mamba = attention_spec(config), mamba_spec(config)
    return [(attention,) if kind == "attention" else (mamba,) for kind in config["layer_types"]]


def derived(config: Config) -> Config:
    """The kinds of layers have an older name."""
    types = config.get("layers_block_type") or ["mamba"] * config["num_hidden_layers"]
    return {**derive_head_dim(config), "layer_types": types}


def check(config: Config) -> None:
    """Raise ValueError on a config that `models/granite_moe_hybrid.py` does not implement."""
    check_mamba(config)
    check_choice(config, "position_embedding_type", None, "rope", "nope")
    check_layer_types(config["layer_types"], config, "attention", "mamba")
    experts, chosen = config["num_local_experts"], config["num_experts_per_tok"]
    if experts and not 1 <= chosen <= experts:
        raise ValueError(f"num_experts_per_tok {chosen} of num_local_experts {experts}")
    if experts and not config.get("intermediate_size"):
        raise ValueError("lacks intermediate_size")
    if has_rope(config):
        rope_settings(config)


ARCHITECTURES = {
    "GraniteMoeHybridForCausalLM": Architecture(
        model="granite_moe_hybrid.GraniteMoeHybridForCausalLM",
        layer_specs=layer_specs,
        required=(*REQUIRED, "shared_intermediate_size"),
        check=check,
        defaults={
            **MAMBA_DEFAULTS,
            "rms_norm_eps": 1e-6,
            "embedding_multiplier": 1.0,
            "logits_scaling": 1.0,
            "residual_multiplier": 1.0,
            "attention_multiplier": 1.0,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "position_embedding_type": None,
        },
        derived=derived,
    )
}
