"""Bamba: Mamba-2 with attention in the layers that the config lists."""

from __future__ import annotations

from sglang.srt.mem_cache.layer_specs import AttentionSpec, LayerSpecs
from sglang.srt.models.architecture import (
    Architecture,
    Config,
    check_choice,
    check_multiple,
    derive_head_dim,
)
from sglang.srt.models.configs.mamba2 import check_groups, mamba2_spec
from sglang.srt.models.rope_config import rope_settings


def attends(config: Config, layer: int) -> bool:
    """Whether a layer is attention rather than Mamba-2."""
    return layer in (config.get("attn_layer_indices") or ())


def hybrid_specs(config: Config, kinds: list[bool]) -> list[LayerSpecs]:
    """Attention keeps KV, Mamba-2 its states; kinds: whether a layer is attention.

    Field names are those of Bamba, GraniteMoeHybrid and Falcon-H1.
    """
    attention = AttentionSpec(config["num_key_value_heads"], config["head_dim"], config["head_dim"])
    mamba = mamba2_spec(
        config["mamba_n_heads"],
        config["mamba_d_head"],
        config["mamba_n_groups"],
        config["mamba_d_state"],
        config["mamba_d_conv"],
    )
    return [(attention,) if attends else (mamba,) for attends in kinds]


def layer_specs(config: Config) -> list[LayerSpecs]:
    """What each layer remembers."""
    return hybrid_specs(config, [attends(config, i) for i in range(config["num_hidden_layers"])])


def derived(config: Config) -> Config:
    """Head sizes that follow from the width."""
    width = config.get("mamba_d_ssm") or config["mamba_expand"] * config["hidden_size"]
    return {**derive_head_dim(config), "mamba_d_head": width // config["mamba_n_heads"]}


def check_hybrid(config: Config) -> None:
    """Raise ValueError on values that no family of these field names implements here."""
    check_choice(config, "hidden_act", "silu")
    check_multiple(config, "num_attention_heads", "num_key_value_heads")
    check_groups(config, "mamba_n_heads", "mamba_n_groups")


def check(config: Config) -> None:
    """Raise ValueError on a config that `models/bamba.py` does not implement."""
    check_hybrid(config)
    rope_settings(config)


# Fields that all families with these names must have, and what they take when they lack others.
REQUIRED = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
    "mamba_n_heads",
)
DEFAULTS: Config = {
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "attention_bias": False,
    "mamba_n_groups": 1,
    "mamba_d_state": 256,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_conv_bias": True,
    "mamba_proj_bias": False,
}

ARCHITECTURES = {
    "BambaForCausalLM": Architecture(
        model="bamba.BambaForCausalLM",
        layer_specs=layer_specs,
        required=REQUIRED,
        check=check,
        # Half of each head is rotated, which the configs do not say.
        defaults={**DEFAULTS, "partial_rotary_factor": 0.5, "mlp_bias": False},
        derived=derived,
    )
}
