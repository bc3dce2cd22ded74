"""OLMo Hybrid: no positions and strong writing; rope, repeated value heads and tied embeddings."""

from support.families import Family

FAMILY = Family(
    "OlmoHybridForCausalLM",
    "OlmoHybridConfig",
    common={"intermediate_size": 96, "num_hidden_layers": 4},
    shapes={
        "no_rope": {
            "hidden_size": 64,
            "num_attention_heads": 4,
            "rope_parameters": {"rope_type": "default", "rope_theta": None},
        },
        "rope": {
            "hidden_size": 48,
            "num_attention_heads": 6,
            "num_key_value_heads": 2,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 24,
            "linear_allow_neg_eigval": False,
            "linear_conv_kernel_dim": 3,
            "attention_bias": True,
            "tie_word_embeddings": True,
            "layer_types": ["full_attention", "linear_attention", "linear_attention",
                            "full_attention"],
        },
    },
)  # fmt: skip
