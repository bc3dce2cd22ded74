"""GraniteMoeHybrid (Granite 4.0-H): Mamba-2 and attention, with experts or without."""

from __future__ import annotations

from sglang.srt.mem_cache.layer_specs import LayerSpecs
from sglang.srt.models.architecture import (
    Architecture,
    Config,
    check_choice,
    check_layer_types,
)
from sglang.srt.models.configs import bamba
from sglang.srt.models.rope_config import rope_settings


def layer_types(config: Config) -> list[str]:
    """ "mamba" or "attention" for each layer; all Mamba where the config says nothing."""
    named = config.get("layer_types") or config.get("layers_block_type")
    return list(named or ["mamba"] * config["num_hidden_layers"])


def layer_specs(config: Config) -> list[LayerSpecs]:
    """What each layer remembers."""
    return bamba.hybrid_specs(config, [kind == "attention" for kind in layer_types(config)])


def check(config: Config) -> None:
    """Raise ValueError on a config that `models/granite_hybrid.py` does not implement."""
    bamba.check_hybrid(config)
    check_layer_types(layer_types(config), config, "mamba", "attention")
    check_choice(config, "position_embedding_type", None, "nope", "rope")
    if config["position_embedding_type"] == "rope":
        rope_settings(config)
    experts, chosen = config["num_local_experts"], config["num_experts_per_tok"]
    if experts and not 0 < chosen <= experts:
        raise ValueError(f"num_experts_per_tok {chosen} is not in [1, num_local_experts {experts}]")


ARCHITECTURES = {
    "GraniteMoeHybridForCausalLM": Architecture(
        model="granite_hybrid.GraniteMoeHybridForCausalLM",
        layer_specs=layer_specs,
        required=(*bamba.REQUIRED, "shared_intermediate_size"),
        check=check,
        defaults={
            **bamba.DEFAULTS,
            "rms_norm_eps": 1e-6,
            "position_embedding_type": None,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "embedding_multiplier": 1.0,
            "residual_multiplier": 1.0,
            "attention_multiplier": 1.0,
            "logits_scaling": 1.0,
        },
        derived=bamba.derived,
    )
}
