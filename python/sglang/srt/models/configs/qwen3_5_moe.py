"""Qwen3.5 with experts in all layers, text; what Qwen's mixtures of experts have in common."""

from __future__ import annotations

from sglang.srt.models.architecture import Architecture, Config
from sglang.srt.models.configs import qwen3_5

MOE_REQUIRED = ("moe_intermediate_size", "num_experts", "num_experts_per_tok")


def check_experts(config: Config) -> None:
    """Raise ValueError if there are no experts, or fewer than a token is to pass."""
    if not isinstance(config.get("num_experts"), int) or config["num_experts"] < 1:
        raise ValueError(f"num_experts must be positive, got {config.get('num_experts')!r}")
    if config["num_experts_per_tok"] > config["num_experts"]:
        raise ValueError(
            f"num_experts_per_tok {config['num_experts_per_tok']} is more than num_experts "
            f"{config['num_experts']}"
        )


def check(config: Config) -> None:
    """Raise ValueError on a config that `models/qwen3_5_moe.py` does not implement."""
    qwen3_5.check(config)
    check_experts(config)


_QWEN3_5_MOE = Architecture(
    model="qwen3_5_moe.Qwen3_5MoeForCausalLM",
    layer_specs=qwen3_5.layer_specs,
    required=(*qwen3_5.REQUIRED, *MOE_REQUIRED, "shared_expert_intermediate_size"),
    check=check,
    # This family knows no unnormalised routing; its configs have no such field.
    defaults={**qwen3_5.DEFAULTS, "norm_topk_prob": True},
)

ARCHITECTURES = {
    "Qwen3_5MoeForCausalLM": _QWEN3_5_MOE,
    "Qwen3_5MoeForConditionalGeneration": _QWEN3_5_MOE,
}
