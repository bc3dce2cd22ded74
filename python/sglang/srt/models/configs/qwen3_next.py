"""Qwen3-Next: Qwen3.5's layers, with experts in some or all of them."""

from __future__ import annotations

from sglang.srt.models.architecture import Architecture, Config
from sglang.srt.models.configs import qwen3_5, qwen3_5_moe


def has_experts(config: Config, layer: int) -> bool:
    """Whether a layer's feed-forward part is a mixture of experts."""
    sparse = (layer + 1) % int(config["decoder_sparse_step"]) == 0
    return sparse and layer not in (config["mlp_only_layers"] or ())


def check_sparse_step(config: Config) -> None:
    """Raise ValueError on a `decoder_sparse_step` that is no step."""
    step = config["decoder_sparse_step"]
    if not isinstance(step, int) or step < 1:
        raise ValueError(f"decoder_sparse_step must be a positive integer, got {step!r}")


def check(config: Config) -> None:
    """Raise ValueError on a config that `models/qwen3_next.py` does not implement."""
    qwen3_5_moe.check(config)
    check_sparse_step(config)


ARCHITECTURES = {
    "Qwen3NextForCausalLM": Architecture(
        model="qwen3_next.Qwen3NextForCausalLM",
        layer_specs=qwen3_5.layer_specs,
        required=(
            *qwen3_5.REQUIRED,
            *qwen3_5_moe.MOE_REQUIRED,
            "intermediate_size",
            "shared_expert_intermediate_size",
        ),
        check=check,
        defaults={
            **qwen3_5.DEFAULTS,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": (),
        },
    )
}
