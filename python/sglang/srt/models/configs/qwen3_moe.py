"""Qwen3 with experts: attention in all layers, experts in some or all."""

from __future__ import annotations

from sglang.srt.mem_cache.layer_specs import AttentionSpec, LayerSpecs
from sglang.srt.models.architecture import (
    Architecture,
    Config,
    check_choice,
    check_multiple,
    derive_head_dim,
)
from sglang.srt.models.configs.qwen3_5_moe import check_experts
from sglang.srt.models.configs.qwen3_next import check_sparse_step
from sglang.srt.models.rope_config import rope_settings


def layer_specs(config: Config) -> list[LayerSpecs]:
    """KV in each layer."""
    attention = AttentionSpec(config["num_key_value_heads"], config["head_dim"], config["head_dim"])
    return [(attention,)] * int(config["num_hidden_layers"])


def derived(config: Config) -> Config:
    """Head size, and the number of experts by the name that `transformers` 5 writes."""
    return {**derive_head_dim(config), "num_experts": config.get("num_local_experts")}


def check(config: Config) -> None:
    """Raise ValueError on a config that `models/qwen3_moe.py` does not implement."""
    check_choice(config, "hidden_act", "silu")
    check_choice(config, "use_sliding_window", False)
    check_multiple(config, "num_attention_heads", "num_key_value_heads")
    check_experts(config)
    check_sparse_step(config)
    rope_settings(config)


ARCHITECTURES = {
    "Qwen3MoeForCausalLM": Architecture(
        model="qwen3_moe.Qwen3MoeForCausalLM",
        layer_specs=layer_specs,
        required=(
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "vocab_size",
            "moe_intermediate_size",
            "num_experts_per_tok",
        ),
        check=check,
        defaults={
            "rms_norm_eps": 1e-6,
            "hidden_act": "silu",
            "attention_bias": False,
            "use_sliding_window": False,
            "norm_topk_prob": False,
            "decoder_sparse_step": 1,
            "mlp_only_layers": (),
        },
        derived=derived,
    )
}
