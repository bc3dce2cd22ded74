"""Nemotron-H: MLPs; experts in groups on a narrower input; a stage that remembers nothing.

`transformers` 5.12.1 on a CPU bounds step sizes by `time_step_min`: so low a value bounds nothing.
It also adds up what several of its chunks left over the wrong index: here all is in one chunk.
"""

from support.families import Family

FAMILY = Family(
    "NemotronHForCausalLM",
    "NemotronHConfig",
    common={"time_step_min": 1e-9, "chunk_size": 512, "use_mamba_kernels": False},
    shapes={
        "mlp": {
            "layers_block_type": ["mamba", "mlp", "attention", "mlp", "mamba"],
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "mamba_num_heads": 8,
            "mamba_head_dim": 16,
            "n_groups": 2,
            "ssm_state_size": 16,
        },
        "experts": {
            "layers_block_type": ["moe", "mamba", "attention", "moe"],
            "hidden_size": 48,
            "num_attention_heads": 6,
            "num_key_value_heads": 1,
            "head_dim": 16,
            "mamba_num_heads": 6,
            "mamba_head_dim": 8,
            "n_groups": 3,
            "ssm_state_size": 24,
            "conv_kernel": 3,
            "use_conv_bias": False,
            "use_bias": True,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 2.5,
            "moe_intermediate_size": 24,
            "moe_shared_expert_intermediate_size": 40,
            "moe_latent_size": 32,
        },
        "experts_only": {
            "layers_block_type": ["mamba", "moe"],
            "hidden_size": 32,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "mamba_num_heads": 4,
            "mamba_head_dim": 16,
            "n_groups": 1,
            "ssm_state_size": 8,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "norm_topk_prob": False,
            "moe_intermediate_size": 16,
            "moe_shared_expert_intermediate_size": 24,
        },
    },
)
