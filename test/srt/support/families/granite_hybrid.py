"""Granite 4.0-H: dense and without positions; with experts and rope."""

from support.families import Family

FAMILY = Family(
    "GraniteMoeHybridForCausalLM",
    "GraniteMoeHybridConfig",
    common={
        "hidden_size": 64,
        "num_attention_heads": 4,
        "mamba_d_state": 16,
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.6,
        "attention_multiplier": 0.1,
        "logits_scaling": 2.0,
    },
    shapes={
        "dense": {
            "intermediate_size": 96,
            "num_hidden_layers": 4,
            "num_key_value_heads": 2,
            "mamba_n_heads": 8,
            "num_local_experts": 0,
            "num_experts_per_tok": 0,
            "shared_intermediate_size": 96,
            "layer_types": ["mamba", "mamba", "attention", "mamba"],
            "position_embedding_type": "nope",
            "tie_word_embeddings": True,
        },
        "experts": {
            "intermediate_size": 40,
            "num_hidden_layers": 3,
            "num_key_value_heads": 4,
            "mamba_n_heads": 4,
            "mamba_n_groups": 2,
            "num_local_experts": 6,
            "num_experts_per_tok": 3,
            "shared_intermediate_size": 56,
            "layer_types": ["attention", "mamba", "mamba"],
            "position_embedding_type": "rope",
        },
    },
)
