"""Falcon-H1: without the output norm; with it, in groups, before the gate; all multipliers."""

from support.families import Family

FAMILY = Family(
    "FalconH1ForCausalLM",
    "FalconH1Config",
    common={
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "mamba_d_state": 16,
        "lm_head_multiplier": 0.7,
        "embedding_multiplier": 2.5,
        "mlp_multipliers": [0.8, 0.6],
        "key_multiplier": 0.5,
        "attention_in_multiplier": 0.9,
        "attention_out_multiplier": 0.8,
        "ssm_multipliers": [0.7, 0.9, 0.6, 0.8, 1.2],
        "ssm_in_multiplier": 1.3,
        "ssm_out_multiplier": 0.75,
    },
    shapes={
        "gate_alone": {
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_key_value_heads": 2,
            "mamba_d_ssm": 96,
            "mamba_n_heads": 6,
        },
        "norm": {
            "hidden_size": 48,
            "intermediate_size": 64,
            "num_key_value_heads": 1,
            "mamba_d_ssm": 64,
            "mamba_n_heads": 4,
            "mamba_n_groups": 2,
            "mamba_rms_norm": True,
            "mamba_norm_before_gate": False,
            "tie_word_embeddings": True,
        },
    },
)
