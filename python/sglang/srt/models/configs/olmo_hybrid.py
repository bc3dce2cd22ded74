"""OLMo Hybrid: gated delta nets with an attention layer every few layers."""

from __future__ import annotations

from sglang.srt.mem_cache.layer_specs import LayerSpecs
from sglang.srt.models.architecture import (
    Architecture,
    Config,
    check_choice,
    check_layer_types,
    check_multiple,
    derive_head_dim,
)
from sglang.srt.models.configs import qwen3_5
from sglang.srt.models.rope_config import rope_settings


def derived(config: Config) -> Config:
    """Head counts, head sizes and layer types that a config leaves to its other fields."""
    heads, layers = config["num_attention_heads"], config["num_hidden_layers"]
    key_dim = config.get("linear_key_head_dim") or int(
        0.75 * config["hidden_size"] / (config.get("linear_num_key_heads") or heads)
    )
    types = ["full_attention" if i % 4 == 3 else "linear_attention" for i in range(layers)]
    if "full_attention" not in types:
        types[-1] = "full_attention"
    return {
        **derive_head_dim(config),
        "num_key_value_heads": heads,
        "linear_num_key_heads": heads,
        "linear_num_value_heads": heads,
        "linear_key_head_dim": key_dim,
        "linear_value_head_dim": 2 * key_dim,
        "layer_types": types,
    }


def has_rope(config: Config) -> bool:
    """Whether attention knows positions; a wavelength that is given as null says no."""
    parameters = config.get("rope_parameters") or {}
    return parameters.get("rope_theta", config.get("rope_theta", 10000.0)) is not None


def layer_specs(config: Config) -> list[LayerSpecs]:
    """As Qwen3.5's: queries, keys and values of a delta net are one convolution side by side."""
    return qwen3_5.layer_specs(config)


def check(config: Config) -> None:
    """Raise ValueError on a config that `models/olmo_hybrid.py` does not implement."""
    check_choice(config, "hidden_act", "silu")
    check_multiple(config, "num_attention_heads", "num_key_value_heads")
    check_multiple(config, "linear_num_value_heads", "linear_num_key_heads")
    check_layer_types(config["layer_types"], config, "full_attention", "linear_attention")
    if has_rope(config):
        rope_settings(config)


ARCHITECTURES = {
    "OlmoHybridForCausalLM": Architecture(
        model="olmo_hybrid.OlmoHybridForCausalLM",
        layer_specs=layer_specs,
        required=(
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
            "vocab_size",
        ),
        check=check,
        defaults={
            "rms_norm_eps": 1e-6,
            "hidden_act": "silu",
            "attention_bias": False,
            "linear_conv_kernel_dim": 4,
            "linear_allow_neg_eigval": True,
        },
        derived=derived,
    )
}
