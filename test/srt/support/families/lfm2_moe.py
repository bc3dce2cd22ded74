"""LFM2 with experts: with and without the correction bias."""

from support.families import Family

FAMILY = Family(
    "Lfm2MoeForCausalLM",
    "Lfm2MoeConfig",
    common={"num_hidden_layers": 4, "intermediate_size": 96, "num_attention_heads": 4},
    shapes={
        "bias": {
            "hidden_size": 64,
            "num_key_value_heads": 2,
            "moe_intermediate_size": 24,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "num_dense_layers": 1,
            "layer_types": ["conv", "conv", "full_attention", "conv"],
        },
        "no_bias": {
            "hidden_size": 32,
            "num_key_value_heads": 4,
            "moe_intermediate_size": 40,
            "num_experts": 3,
            "num_experts_per_tok": 1,
            "num_dense_layers": 0,
            "norm_topk_prob": False,
            "use_expert_bias": False,
            "routed_scaling_factor": 1.5,
            "layer_types": ["full_attention", "conv", "conv", "full_attention"],
        },
    },
)
