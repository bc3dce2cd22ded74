"""LFM2 with experts in all but the first layers."""

from __future__ import annotations

from sglang.srt.models.architecture import Architecture, Config, derive_head_dim
from sglang.srt.models.configs import lfm2
from sglang.srt.models.configs.qwen3_5_moe import MOE_REQUIRED, check_experts


def check(config: Config) -> None:
    """Raise ValueError on a config that `models/lfm2_moe.py` does not implement."""
    lfm2.check(config)
    check_experts(config)


ARCHITECTURES = {
    "Lfm2MoeForCausalLM": Architecture(
        model="lfm2_moe.Lfm2MoeForCausalLM",
        layer_specs=lfm2.layer_specs,
        required=(*lfm2.REQUIRED, *MOE_REQUIRED, "intermediate_size"),
        check=check,
        defaults={
            **lfm2.DEFAULTS,
            "num_dense_layers": 2,
            "use_expert_bias": True,
            "norm_topk_prob": True,
            "routed_scaling_factor": 1.0,
        },
        derived=derive_head_dim,
    )
}
