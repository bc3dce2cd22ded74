"""Granite 4: dense without positions; experts with rope."""

from support.families import Family

FAMILY = Family(
    "GraniteMoeHybridForCausalLM",
    "GraniteMoeHybridConfig",
    common={"embedding_multiplier": 3.0, "residual_multiplier": 0.4, "logits_scaling": 2.5},
    shapes={
        "dense": {
            "num_hidden_layers": 4,
            "hidden_size": 64,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "num_local_experts": 0,
            "num_experts_per_tok": 0,
            "shared_intermediate_size": 96,
            "position_embedding_type": "nope",
            "attention_multiplier": 0.125,
            "layer_types": ["mamba", "mamba", "attention", "mamba"],
            "mamba_n_heads": 8,
            "mamba_n_groups": 1,
            "mamba_d_state": 16,
            "tie_word_embeddings": True,
        },
        "experts": {
            "num_hidden_layers": 3,
            "hidden_size": 48,
            "intermediate_size": 24,
            "num_attention_heads": 6,
            "num_key_value_heads": 3,
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "shared_intermediate_size": 40,
            "position_embedding_type": "rope",
            "attention_multiplier": 0.3,
            "layer_types": ["attention", "mamba", "mamba"],
            "mamba_n_heads": 6,
            "mamba_n_groups": 2,
            "mamba_d_state": 24,
            "mamba_proj_bias": True,
            "attention_bias": True,
        },
    },
)
