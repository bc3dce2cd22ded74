"""Qwen3-Next: experts everywhere with a repeated value head; some MLPs and one head each."""

from support.families import Family

FAMILY = Family(
    "Qwen3NextForCausalLM",
    "Qwen3NextConfig",
    common={"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "head_dim": 32},
    shapes={
        "all_experts": {
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
            "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 40,
            "num_experts": 8,
            "num_experts_per_tok": 3,
        },
        "some_mlps": {
            "num_hidden_layers": 5,
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "linear_num_key_heads": 1,
            "linear_num_value_heads": 3,
            "linear_key_head_dim": 24,
            "linear_value_head_dim": 8,
            "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 16,
            "num_experts": 5,
            "num_experts_per_tok": 2,
            "norm_topk_prob": False,
            "mlp_only_layers": [3],
            "decoder_sparse_step": 2,
            "tie_word_embeddings": True,
            "layer_types": ["linear_attention", "full_attention", "linear_attention",
                            "linear_attention", "full_attention"],
        },
    },
)  # fmt: skip
