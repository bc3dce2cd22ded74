"""Jamba (arXiv:2403.19887): Mamba layers, attention once a period, experts once a period."""

from __future__ import annotations

from sglang.srt.mem_cache.layer_specs import AttentionSpec, LayerSpecs, MambaSpec
from sglang.srt.models.architecture import (
    Architecture,
    Config,
    check_choice,
    check_multiple,
    derive_head_dim,
)
from sglang.srt.models.configs.qwen3_5_moe import check_experts


def attends(config: Config, layer: int) -> bool:
    """Whether a layer is attention rather than Mamba."""
    return bool(layer % config["attn_layer_period"] == config["attn_layer_offset"])


def has_experts(config: Config, layer: int) -> bool:
    """Whether a layer's feed-forward part is a mixture of experts."""
    chosen = layer % config["expert_layer_period"] == config["expert_layer_offset"]
    return bool(chosen and config["num_experts"] > 1)


def channels(config: Config) -> int:
    """Width inside a Mamba layer."""
    return int(config["mamba_expand"] * config["hidden_size"])


def layer_specs(config: Config) -> list[LayerSpecs]:
    """Attention keeps KV; a Mamba layer its convolution inputs and a small state a channel."""
    attention = AttentionSpec(config["num_key_value_heads"], config["head_dim"], config["head_dim"])
    width = channels(config)
    mamba = MambaSpec(width, config["mamba_d_conv"], (width, config["mamba_d_state"]))
    return [
        (attention,) if attends(config, layer) else (mamba,)
        for layer in range(config["num_hidden_layers"])
    ]


def dt_rank(config: Config) -> int:
    """Width of the bottleneck that step sizes come from; "auto" is a 16th of the width."""
    rank = config["mamba_dt_rank"]
    return -(-config["hidden_size"] // 16) if rank == "auto" else int(rank)


def check(config: Config) -> None:
    """Raise ValueError on a config that `models/jamba.py` does not implement."""
    check_choice(config, "hidden_act", "silu")
    check_choice(config, "mamba_inner_layernorms", True)
    check_multiple(config, "num_attention_heads", "num_key_value_heads")
    if config["num_experts"] > 1:
        check_experts(config)
    for kind in ("attn", "expert"):
        period, offset = config[f"{kind}_layer_period"], config[f"{kind}_layer_offset"]
        if not 0 <= offset < period:
            raise ValueError(f"{kind}_layer_offset {offset} is not below the period {period}")


ARCHITECTURES = {
    "JambaForCausalLM": Architecture(
        model="jamba.JambaForCausalLM",
        layer_specs=layer_specs,
        required=(
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "vocab_size",
        ),
        check=check,
        defaults={
            "rms_norm_eps": 1e-6,
            "hidden_act": "silu",
            "num_experts": 16,
            "num_experts_per_tok": 2,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
            "attn_layer_period": 8,
            "attn_layer_offset": 4,
            "mamba_d_state": 16,
            "mamba_d_conv": 4,
            "mamba_expand": 2,
            "mamba_dt_rank": "auto",
            "mamba_conv_bias": True,
            "mamba_proj_bias": False,
            "mamba_inner_layernorms": True,
        },
        derived=derive_head_dim,
    )
}
