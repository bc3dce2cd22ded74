"""Mamba-2: heads that share B and C, tied; one group, biases, bounded steps."""

from support.families import Family

FAMILY = Family(
    "Mamba2ForCausalLM",
    "Mamba2Config",
    common={"num_hidden_layers": 3},
    shapes={
        "groups": {
            "hidden_size": 48,
            "num_heads": 6,
            "head_dim": 16,
            "n_groups": 2,
            "state_size": 16,
            "tie_word_embeddings": True,
        },
        "biases": {
            "hidden_size": 32,
            "num_heads": 8,
            "head_dim": 8,
            "n_groups": 1,
            "state_size": 24,
            "conv_kernel": 3,
            "use_bias": True,
            "use_conv_bias": False,
            "time_step_limit": (0.01, 0.5),
        },
    },
)
