"""What each architecture's layers remember, from its config alone (no torch).

A new architecture adds one function here and one model file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang.srt.mem_cache.layer_specs import AttentionSpec, LayerSpecs, MambaSpec

Config = dict[str, Any]


def qwen3_5_layer_types(config: Config) -> list[str]:
    """ "linear_attention" or "full_attention" for each layer."""
    if config.get("layer_types"):
        return list(config["layer_types"])
    every = int(config.get("full_attention_interval", 4))
    return [
        "full_attention" if (layer + 1) % every == 0 else "linear_attention"
        for layer in range(config["num_hidden_layers"])
    ]


def qwen3_5_specs(config: Config) -> list[LayerSpecs]:
    """Qwen3.5 text: gated attention keeps KV; a gated delta net keeps its convolution inputs and
    one [key_dim, value_dim] matrix a value head."""
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
        (attention,) if kind == "full_attention" else (delta_net,)
        for kind in qwen3_5_layer_types(config)
    ]


LAYER_SPECS: dict[str, Callable[[Config], list[LayerSpecs]]] = {
    "Qwen3_5ForCausalLM": qwen3_5_specs,
    "Qwen3_5ForConditionalGeneration": qwen3_5_specs,
}

# Fields that every config of an architecture must have.
REQUIRED_FIELDS: dict[str, tuple[str, ...]] = {
    name: (
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "vocab_size",
        "linear_num_key_heads",
        "linear_num_value_heads",
        "linear_key_head_dim",
        "linear_value_head_dim",
        "linear_conv_kernel_dim",
    )
    for name in ("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration")
}
