"""Nemotron-H: each layer is one thing, a mixer or a feed-forward part, by a pattern."""

from __future__ import annotations

from sglang.srt.mem_cache.layer_specs import AttentionSpec, LayerSpecs
from sglang.srt.models.architecture import (
    Architecture,
    Config,
    check_choice,
    check_layer_types,
    check_multiple,
)
from sglang.srt.models.configs.mamba2 import check_groups, mamba2_spec

PATTERN = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}


def layer_types(config: Config) -> list[str]:
    """ "mamba", "attention", "mlp" or "moe" for each layer, from names or from letters."""
    named = config.get("layers_block_type") or config.get("layer_types")
    if named:
        return list(named)
    return [PATTERN.get(letter, letter) for letter in config.get("hybrid_override_pattern") or ""]


def layer_specs(config: Config) -> list[LayerSpecs]:
    """Attention keeps KV, Mamba-2 its states, feed-forward layers nothing."""
    attention = AttentionSpec(config["num_key_value_heads"], config["head_dim"], config["head_dim"])
    mamba = mamba2_spec(
        config["mamba_num_heads"],
        config["mamba_head_dim"],
        config["n_groups"],
        config["ssm_state_size"],
        config["conv_kernel"],
    )
    specs: dict[str, LayerSpecs] = {"attention": (attention,), "mamba": (mamba,)}
    return [specs.get(kind, ()) for kind in layer_types(config)]


def check(config: Config) -> None:
    """Raise ValueError on a config that `models/nemotron_h.py` does not implement."""
    check_choice(config, "mlp_hidden_act", "relu2")
    check_choice(config, "mamba_hidden_act", "silu")
    check_choice(config, "sliding_window", None)
    check_choice(config, "attention_bias", False)
    check_multiple(config, "num_attention_heads", "num_key_value_heads")
    check_groups(config, "mamba_num_heads", "n_groups")
    kinds = layer_types(config)
    if not kinds:
        raise ValueError("lacks layers_block_type or hybrid_override_pattern")
    check_layer_types(kinds, config, *PATTERN.values())
    if "moe" in kinds:
        check_multiple(config, "n_routed_experts", "n_group")
        if config["num_experts_per_tok"] > config["n_routed_experts"]:
            raise ValueError(
                f"num_experts_per_tok {config['num_experts_per_tok']} is more than "
                f"n_routed_experts {config['n_routed_experts']}"
            )


ARCHITECTURES = {
    "NemotronHForCausalLM": Architecture(
        model="nemotron_h.NemotronHForCausalLM",
        layer_specs=layer_specs,
        required=(
            "hidden_size",
            "num_attention_heads",
            "num_key_value_heads",
            "vocab_size",
            "mamba_num_heads",
            "mamba_head_dim",
        ),
        check=check,
        defaults={
            "layer_norm_epsilon": 1e-5,
            "head_dim": 128,
            "attention_bias": False,
            "intermediate_size": 21504,
            "mlp_hidden_act": "relu2",
            "mlp_bias": False,
            "mamba_hidden_act": "silu",
            "use_bias": False,
            "sliding_window": None,
            "ssm_state_size": 128,
            "n_groups": 8,
            "conv_kernel": 4,
            "use_conv_bias": True,
            "n_routed_experts": 8,
            "moe_intermediate_size": 7688,
            "moe_shared_expert_intermediate_size": 7688,
            "moe_latent_size": None,
            "num_experts_per_tok": 2,
            "routed_scaling_factor": 1.0,
            "n_group": 1,
            "topk_group": 1,
            "norm_topk_prob": True,
        },
        derived=lambda config: {"num_hidden_layers": len(layer_types(config))},
    )
}
