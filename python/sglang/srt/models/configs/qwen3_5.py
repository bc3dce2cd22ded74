"""Qwen3.5, text: what its layers remember."""

from __future__ import annotations

from sglang.srt.mem_cache.layer_specs import AttentionSpec, LayerSpecs, MambaSpec
from sglang.srt.models.architecture import (
    Architecture,
    Config,
    check_choice,
    check_layer_types,
    check_multiple,
)
from sglang.srt.models.rope_config import rope_settings


def layer_types(config: Config) -> list[str]:
    """ "linear_attention" or "full_attention" for each layer."""
    if config.get("layer_types"):
        return list(config["layer_types"])
    every = int(config["full_attention_interval"])
    return [
        "full_attention" if (layer + 1) % every == 0 else "linear_attention"
        for layer in range(config["num_hidden_layers"])
    ]


def layer_specs(config: Config) -> list[LayerSpecs]:
    """Gated attention keeps KV; a gated delta net keeps its convolution inputs and one
    [key_dim, value_dim] matrix a value head."""
    attention = AttentionSpec(config["num_key_value_heads"], config["head_dim"], config["head_dim"])
    key_dim = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    value_dim = config["linear_num_value_heads"] * config["linear_value_head_dim"]
    delta_net = MambaSpec(
        conv_dim=2 * key_dim + value_dim,
        conv_kernel=config["linear_conv_kernel_dim"],
        state_shape=(
            config["linear_num_value_heads"],
            config["linear_key_head_dim"],
            config["linear_value_head_dim"],
        ),
    )
    return [
        (attention,) if kind == "full_attention" else (delta_net,) for kind in layer_types(config)
    ]


def check(config: Config) -> None:
    """Raise ValueError on a config that `models/qwen3_5.py` does not implement."""
    check_choice(config, "hidden_act", "silu")
    check_multiple(config, "num_attention_heads", "num_key_value_heads")
    check_multiple(config, "linear_num_value_heads", "linear_num_key_heads")
    check_layer_types(layer_types(config), config, "full_attention", "linear_attention")
    rope_settings(config)


# What all of Qwen's hybrids must have, and what they may lack.
REQUIRED = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_key_head_dim",
    "linear_value_head_dim",
)
DEFAULTS: Config = {
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "attention_bias": False,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4,
    "partial_rotary_factor": 0.25,
}

_QWEN3_5 = Architecture(
    model="qwen3_5.Qwen3_5ForCausalLM",
    layer_specs=layer_specs,
    required=(*REQUIRED, "intermediate_size"),
    check=check,
    defaults=DEFAULTS,
)

ARCHITECTURES = {
    "Qwen3_5ForCausalLM": _QWEN3_5,
    "Qwen3_5ForConditionalGeneration": _QWEN3_5,
}
