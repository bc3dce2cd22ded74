"""Falcon-H1: no norm, all multipliers; norms by groups after the gate, and before it."""

from support.families import Family

MULTIPLIERS = {
    "embedding_multiplier": 3.0,
    "lm_head_multiplier": 0.5,
    "key_multiplier": 0.6,
    "attention_in_multiplier": 0.8,
    "attention_out_multiplier": 0.9,
    "ssm_in_multiplier": 1.25,
    "ssm_out_multiplier": 0.7,
    "mlp_multipliers": [0.9, 0.6],
    "ssm_multipliers": [0.7, 0.9, 0.8, 1.1, 0.6],
}

FAMILY = Family(
    "FalconH1ForCausalLM",
    "FalconH1Config",
    common={"num_hidden_layers": 3},
    shapes={
        "no_norm": {
            **MULTIPLIERS,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "mamba_d_ssm": 96,
            "mamba_n_heads": 6,
            "mamba_d_head": 16,
            "mamba_n_groups": 1,
            "mamba_d_state": 16,
            "tie_word_embeddings": True,
        },
        "norm_after_gate": {
            **MULTIPLIERS,
            "hidden_size": 48,
            "intermediate_size": 40,
            "num_attention_heads": 6,
            "num_key_value_heads": 1,
            "attention_bias": True,
            "mamba_d_ssm": None,
            "mamba_n_heads": 8,
            "mamba_n_groups": 2,
            "mamba_d_state": 24,
            "mamba_rms_norm": True,
            "mamba_norm_before_gate": False,
            "mamba_proj_bias": True,
            "projectors_bias": True,
        },
        "norm_before_gate": {
            "num_hidden_layers": 2,
            "hidden_size": 32,
            "intermediate_size": 40,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "mamba_d_ssm": 64,
            "mamba_n_heads": 4,
            "mamba_n_groups": 2,
            "mamba_d_state": 8,
            "mamba_rms_norm": True,
            "mamba_conv_bias": False,
        },
    },
)
