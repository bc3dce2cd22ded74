"""Qwen2: biases on queries, keys and values."""

from support.families import Family

FAMILY = Family(
    "Qwen2ForCausalLM",
    "Qwen2Config",
    common={"num_attention_heads": 4, "use_sliding_window": False},
    shapes={
        "grouped": {
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 3,
            "num_key_value_heads": 2,
            "tie_word_embeddings": True,
        },
        "all_heads": {
            "hidden_size": 48,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_key_value_heads": 4,
        },
    },
)
