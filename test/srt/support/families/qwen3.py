"""Qwen3: norms on queries and keys, head sizes of their own."""

from support.families import Family

FAMILY = Family(
    "Qwen3ForCausalLM",
    "Qwen3Config",
    common={"num_attention_heads": 4},
    shapes={
        "wide_heads": {
            "hidden_size": 48,
            "intermediate_size": 96,
            "num_hidden_layers": 3,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "tie_word_embeddings": True,
        },
        "biases": {
            "hidden_size": 64,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_key_value_heads": 1,
            "head_dim": 16,
            "attention_bias": True,
        },
    },
)
