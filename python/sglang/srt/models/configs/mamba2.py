"""Mamba-2 (arXiv:2405.21060): the same recurrent layer throughout, no attention."""

from __future__ import annotations

from typing import Any

from sglang.srt.mem_cache.layer_specs import LayerSpecs, MambaSpec
from sglang.srt.models.architecture import Architecture, Config, check_choice, check_multiple


def mamba2_spec(heads: int, head_dim: int, groups: int, state_size: int, kernel: int) -> MambaSpec:
    """What a Mamba-2 layer remembers: inputs of x, B and C, and a matrix a head."""
    channels = heads * head_dim + 2 * groups * state_size
    return MambaSpec(channels, kernel, (heads, head_dim, state_size))


def dt_limit(config: Config) -> tuple[float, float]:
    """Bounds of step sizes; infinity may be spelled as text.

    Raises ValueError unless there are two.
    """
    limits: Any = config.get("time_step_limit")
    if limits is None:
        return 0.0, float("inf")
    found = []
    for value in limits:
        if isinstance(value, dict):  # as `transformers` spells what JSON lacks
            value = value.get("__float__")
        found.append(float(value))
    if len(found) != 2 or not found[0] <= found[1]:
        raise ValueError(f"time_step_limit must be a lower and an upper bound, got {limits!r}")
    return found[0], found[1]


def layer_specs(config: Config) -> list[LayerSpecs]:
    """All layers are alike."""
    spec = mamba2_spec(
        config["num_heads"],
        config["head_dim"],
        config["n_groups"],
        config["state_size"],
        config["conv_kernel"],
    )
    return [(spec,)] * config["num_hidden_layers"]


def check(config: Config) -> None:
    """Raise ValueError on a config that `models/mamba2.py` does not implement."""
    check_choice(config, "hidden_act", "silu", "swish")
    check_choice(config, "rms_norm", True)
    check_multiple(config, "num_heads", "n_groups")
    dt_limit(config)
    inner = config["num_heads"] * config["head_dim"]
    if inner != config["expand"] * config["hidden_size"]:
        raise ValueError(
            f"num_heads {config['num_heads']} of head_dim {config['head_dim']} are not expand "
            f"{config['expand']} times hidden_size {config['hidden_size']}"
        )


ARCHITECTURES = {
    "Mamba2ForCausalLM": Architecture(
        model="mamba2.Mamba2ForCausalLM",
        layer_specs=layer_specs,
        required=(
            "hidden_size",
            "num_hidden_layers",
            "num_heads",
            "vocab_size",
        ),
        check=check,
        defaults={
            "head_dim": 64,
            "state_size": 128,
            "n_groups": 8,
            "conv_kernel": 4,
            "expand": 2,
            "layer_norm_epsilon": 1e-5,
            "hidden_act": "silu",
            "rms_norm": True,
            "use_bias": False,
            "use_conv_bias": True,
        },
    )
}
