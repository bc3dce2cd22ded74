"""Mamba-2 without any attention."""

from support.families import Family

FAMILY = Family(
    "Mamba2ForCausalLM",
    "Mamba2Config",
    common={"num_hidden_layers": 3},
    shapes={
        "groups": {
            "hidden_size": 64,
            "num_heads": 8,
            "head_dim": 16,
            "state_size": 24,
            "n_groups": 2,
        },
        "one_group": {
            "hidden_size": 48,
            "num_heads": 3,
            "head_dim": 32,
            "state_size": 8,
            "n_groups": 1,
            "conv_kernel": 3,
            "use_bias": True,
            "use_conv_bias": False,
            "tie_word_embeddings": True,
            "time_step_limit": (0.01, 0.6),
        },
    },
)
