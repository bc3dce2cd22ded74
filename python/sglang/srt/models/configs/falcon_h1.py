"""Falcon-H1 (arXiv:2507.22448): attention and Mamba-2 side by side in every layer, then an MLP."""

from __future__ import annotations

from sglang.srt.mem_cache.layer_specs import LayerSpecs
from sglang.srt.models.architecture import (
    Architecture,
    Config,
    check_choice,
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


def layer_specs(config: Config) -> list[LayerSpecs]:
    """Both, in every layer."""
    return [(attention_spec(config), mamba_spec(config))] * config["num_hidden_layers"]


def derived(config: Config) -> Config:
    """Multipliers that a config may give as null."""
    return {
        **derive_head_dim(config),
        "mlp_multipliers": [1.0, 1.0],
        "ssm_multipliers": [1.0] * 5,
    }


def check(config: Config) -> None:
    """Raise ValueError on a config that `models/falcon_h1.py` does not implement."""
    check_mamba(config)
    check_choice(config, "mlp_bias", False)
    for name, count in (("mlp_multipliers", 2), ("ssm_multipliers", 5)):
        if len(config[name]) != count:
            raise ValueError(f"{name} must be {count} numbers, got {config[name]!r}")
    rope_settings(config)


ARCHITECTURES = {
    "FalconH1ForCausalLM": Architecture(
        model="falcon_h1.FalconH1ForCausalLM",
        layer_specs=layer_specs,
        required=(*REQUIRED, "intermediate_size"),
        check=check,
        defaults={
            **MAMBA_DEFAULTS,
            "rms_norm_eps": 1e-5,
            "mlp_bias": False,
            "projectors_bias": False,
            "mamba_rms_norm": False,
            "mamba_norm_before_gate": True,
            **{
                f"{name}_multiplier": 1.0
                for name in (
                    "embedding",
                    "lm_head",
                    "key",
                    "attention_in",
                    "attention_out",
                    "ssm_in",
                    "ssm_out",
                )
            },
        },
        derived=derived,
    )
}
