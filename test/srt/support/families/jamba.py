"""Jamba: experts and a short attention period; no experts, biases and attention first."""

from support.families import Family

FAMILY = Family(
    "JambaForCausalLM",
    "JambaConfig",
    common={"num_hidden_layers": 4, "num_attention_heads": 4},
    shapes={
        "experts": {
            "hidden_size": 64,
            "intermediate_size": 48,
            "num_key_value_heads": 2,
            "num_experts": 5,
            "num_experts_per_tok": 2,
            "attn_layer_period": 4,
            "attn_layer_offset": 2,
            "mamba_d_state": 16,
        },
        "dense": {
            "hidden_size": 48,
            "intermediate_size": 80,
            "num_key_value_heads": 1,
            "num_experts": 1,
            "num_experts_per_tok": 1,
            "attn_layer_period": 3,
            "attn_layer_offset": 0,
            "mamba_d_state": 6,
            "mamba_d_conv": 3,
            "mamba_dt_rank": 5,
            "mamba_expand": 3,
            "mamba_conv_bias": False,
            "mamba_proj_bias": True,
            "tie_word_embeddings": True,
        },
    },
)
