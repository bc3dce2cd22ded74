"""Nemotron-H: dense by a pattern of layers; with experts in groups and a latent projection."""

from support.families import Family

FAMILY = Family(
    "NemotronHForCausalLM",
    "NemotronHConfig",
    common={"num_attention_heads": 4, "ssm_state_size": 16},
    shapes={
        "dense": {
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 6,
            "layers_block_type": ["mamba", "mlp", "attention", "mlp", "mamba", "mlp"],
            "num_key_value_heads": 2,
            "head_dim": 16,
            "mamba_num_heads": 8,
            "mamba_head_dim": 16,
            "n_groups": 2,
        },
        "experts": {
            "hidden_size": 48,
            "num_hidden_layers": 4,
            "layers_block_type": ["moe", "mamba", "attention", "moe"],
            "num_key_value_heads": 1,
            "head_dim": 24,
            "mamba_num_heads": 6,
            "mamba_head_dim": 8,
            "n_groups": 3,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "n_group": 2,
            "topk_group": 1,
            "moe_intermediate_size": 40,
            "moe_shared_expert_intermediate_size": 56,
            "moe_latent_size": 32,
            "routed_scaling_factor": 1.7,
        },
    },
)
