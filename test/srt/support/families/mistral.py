"""Mistral without a window."""

from support.families import Family

FAMILY = Family(
    "MistralForCausalLM",
    "MistralConfig",
    common={"num_attention_heads": 4, "sliding_window": None},
    shapes={
        "grouped": {
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 3,
            "num_key_value_heads": 2,
        },
        "head_dim": {
            "hidden_size": 48,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_key_value_heads": 1,
            "head_dim": 16,
            "tie_word_embeddings": True,
        },
    },
)
