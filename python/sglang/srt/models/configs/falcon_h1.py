"""Falcon-H1: attention and Mamba-2 side by side in every layer."""

from __future__ import annotations

from sglang.srt.mem_cache.layer_specs import LayerSpecs
from sglang.srt.models.architecture import Architecture, Config, check_choice
from sglang.srt.models.configs import bamba
from sglang.srt.models.rope_config import rope_settings


def layer_specs(config: Config) -> list[LayerSpecs]:
    """Each layer keeps both KV and Mamba-2 states."""
    attention, mamba = bamba.hybrid_specs(config, [True, False])
    return [(*attention, *mamba)] * config["num_hidden_layers"]


def check(config: Config) -> None:
    """Raise ValueError on a config that `models/falcon_h1.py` does not implement."""
    bamba.check_hybrid(config)
    rope_settings(config)
    check_choice(config, "mamba_proj_bias", False)
    check_choice(config, "projectors_bias", False)
    for name, count in (("mlp_multipliers", 2), ("ssm_multipliers", 5)):
        if len(config[name]) != count:
            raise ValueError(f"{name} must be {count} numbers, got {config[name]}")


ARCHITECTURES = {
    "FalconH1ForCausalLM": Architecture(
        model="falcon_h1.FalconH1ForCausalLM",
        layer_specs=layer_specs,
        required=bamba.REQUIRED,
        check=check,
        defaults={
            **bamba.DEFAULTS,
            "mlp_bias": False,
            "projectors_bias": False,
            "mamba_norm_before_gate": True,
            "mamba_rms_norm": False,
            "lm_head_multiplier": 1.0,
            "embedding_multiplier": 1.0,
            "key_multiplier": 1.0,
            "attention_in_multiplier": 1.0,
            "attention_out_multiplier": 1.0,
            "ssm_in_multiplier": 1.0,
            "ssm_out_multiplier": 1.0,
        },
        derived=lambda config: {
            **bamba.derived(config),
            "mlp_multipliers": [1.0, 1.0],
            "ssm_multipliers": [1.0] * 5,
        },
    )
}
