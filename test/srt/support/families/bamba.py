"""Bamba: heads in groups with attention in the middle; one group, biases, attention first.

`attn_rotary_emb` makes us rotate whole heads, as `transformers` 5.12.1 does for any config.
"""

from support.families import Family

FAMILY = Family(
    "BambaForCausalLM",
    "BambaConfig",
    shapes={
        "groups": {
            "num_hidden_layers": 4,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "attn_layer_indices": [2],
            "attn_rotary_emb": 16,
            "mamba_n_heads": 8,
            "mamba_n_groups": 2,
            "mamba_d_state": 16,
            "tie_word_embeddings": True,
        },
        "biases": {
            "num_hidden_layers": 3,
            "hidden_size": 48,
            "intermediate_size": 40,
            "num_attention_heads": 6,
            "num_key_value_heads": 1,
            "attention_bias": True,
            "attn_layer_indices": [0],
            "attn_rotary_emb": 8,
            "mamba_n_heads": 6,
            "mamba_d_head": 16,
            "mamba_n_groups": 1,
            "mamba_d_state": 24,
            "mamba_d_conv": 3,
            "mamba_conv_bias": False,
            "mamba_proj_bias": True,
            "time_step_limit": (0.05, 0.6),
        },
    },
)
