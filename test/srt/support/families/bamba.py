"""Bamba: attention in the middle; attention first, biases, several groups."""

from support.families import Family

FAMILY = Family(
    "BambaForCausalLM",
    "BambaConfig",
    common={"num_attention_heads": 4, "mamba_d_state": 16},
    shapes={
        "middle": {
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 4,
            "num_key_value_heads": 2,
            "mamba_n_heads": 8,
            "attn_layer_indices": [2],
        },
        "biases": {
            "hidden_size": 48,
            "intermediate_size": 80,
            "num_hidden_layers": 3,
            "num_key_value_heads": 1,
            "mamba_n_heads": 6,
            "mamba_n_groups": 3,
            "mamba_d_conv": 2,
            "mamba_conv_bias": False,
            "mamba_proj_bias": True,
            "attention_bias": True,
            "mlp_bias": True,
            "attn_layer_indices": [0],
            "tie_word_embeddings": True,
            "time_step_limit": (0.05, 0.5),
        },
    },
)
