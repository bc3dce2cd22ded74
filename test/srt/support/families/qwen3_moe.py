"""Qwen3 with experts: in all layers, normalised; in some, with biases and tied embeddings."""

from support.families import Family

FAMILY = Family(
    "Qwen3MoeForCausalLM",
    "Qwen3MoeConfig",
    common={"intermediate_size": 96},
    shapes={
        "all_experts": {
            "hidden_size": 64,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "moe_intermediate_size": 24,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "norm_topk_prob": True,
        },
        "some_mlps": {
            "hidden_size": 48,
            "num_hidden_layers": 4,
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "head_dim": 16,
            "moe_intermediate_size": 40,
            "num_experts": 3,
            "num_experts_per_tok": 1,
            "norm_topk_prob": False,
            "decoder_sparse_step": 2,
            "mlp_only_layers": [3],
            "attention_bias": True,
            "tie_word_embeddings": True,
        },
    },
)
