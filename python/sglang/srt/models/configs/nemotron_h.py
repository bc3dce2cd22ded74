"""Nemotron-H (arXiv:2504.03624): each layer is one thing: Mamba-2, attention, an MLP or experts."""

from __future__ import annotations

from sglang.srt.mem_cache.layer_specs import AttentionSpec, LayerSpecs
from sglang.srt.models.architecture import (
    Architecture,
    Config,
    check_choice,
    check_layer_types,
    check_multiple,
)
from sglang.srt.models.configs.mamba2 import dt_limit, mamba2_spec

KINDS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}


def layer_specs(config: Config) -> list[LayerSpecs]:
    """MLPs and experts remember nothing."""
    attention = AttentionSpec(config["num_key_value_heads"], config["head_dim"], config["head_dim"])
    mamba = mamba2_spec(
        config["mamba_num_heads"],
        config["mamba_head_dim"],
        config["n_groups"],
        config["ssm_state_size"],
        config["conv_kernel"],
    )
    remembered: dict[str, LayerSpecs] = {"mamba": (mamba,), "attention": (attention,)}
    return [remembered.get(kind, ()) for kind in config["layer_types"]]


def derived(config: Config) -> Config:
    """The kinds of layers are spelled as a list, or as a pattern of letters."""
    types = config.get("layer_types") or config.get("layers_block_type")
    if not types:
        pattern = config.get("hybrid_override_pattern") or ""
        types = [KINDS.get(letter, letter) for letter in pattern]
    return {
        "layer_types": types,
        "num_hidden_layers": len(types),
        "head_dim": config.get("attention_head_dim") or 128,
    }


def check(config: Config) -> None:
    """Raise ValueError on a config that `models/nemotron_h.py` does not implement."""
    if not config["layer_types"]:
        raise ValueError("lacks hybrid_override_pattern")
    check_layer_types(config["layer_types"], config, *KINDS.values())
    check_choice(config, "mamba_hidden_act", "silu", "swish")
    check_choice(config, "mlp_hidden_act", "relu2")
    for name in ("mlp_bias", "attention_bias", "tie_word_embeddings"):
        check_choice(config, name, False)
    check_choice(config, "sliding_window", None)
    check_multiple(config, "num_attention_heads", "num_key_value_heads")
    check_multiple(config, "mamba_num_heads", "n_groups")
    dt_limit(config)
    if "mlp" in config["layer_types"] and not config.get("intermediate_size"):
        raise ValueError("lacks intermediate_size")
    if "moe" in config["layer_types"]:
        _check_experts(config)


def _check_experts(config: Config) -> None:
    for name in (
        "n_routed_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
        "moe_shared_expert_intermediate_size",
    ):
        if not isinstance(config.get(name), int) or config[name] < 1:
            raise ValueError(f"{name} must be a positive integer, got {config.get(name)!r}")
    check_choice(config, "n_shared_experts", 1)
    check_multiple(config, "n_routed_experts", "n_group")
    if config["topk_group"] > config["n_group"]:
        raise ValueError(f"topk_group {config['topk_group']} of n_group {config['n_group']}")
    able = config["n_routed_experts"] // config["n_group"] * config["topk_group"]
    if config["num_experts_per_tok"] > able:
        raise ValueError(f"num_experts_per_tok {config['num_experts_per_tok']} of {able} experts")


ARCHITECTURES = {
    "NemotronHForCausalLM": Architecture(
        model="nemotron_h.NemotronHForCausalLM",
        layer_specs=layer_specs,
        required=(
            "hidden_size",
            "num_attention_heads",
            "num_key_value_heads",
            "mamba_num_heads",
            "mamba_head_dim",
            "ssm_state_size",
            "vocab_size",
        ),
        check=check,
        defaults={
            "n_groups": 8,
            "conv_kernel": 4,
            "use_bias": False,
            "use_conv_bias": True,
            "layer_norm_epsilon": 1e-5,
            "mamba_hidden_act": "silu",
            "mlp_hidden_act": "relu2",
            "mlp_bias": False,
            "attention_bias": False,
            "tie_word_embeddings": False,
            "sliding_window": None,
            "n_shared_experts": 1,
            "n_group": 1,
            "topk_group": 1,
            "norm_topk_prob": True,
            "routed_scaling_factor": 1.0,
            "moe_latent_size": None,
        },
        derived=derived,
    )
}
