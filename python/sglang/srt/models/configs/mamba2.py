"""Mamba-2 (arXiv:2405.21060) alone: no attention, so no KV."""

from __future__ import annotations

import math

from sglang.srt.mem_cache.layer_specs import LayerSpecs, MambaSpec
from sglang.srt.models.architecture import Architecture, Config, check_choice


def mamba2_spec(
    num_heads: int, head_dim: int, num_groups: int, state_size: int, kernel: int
) -> MambaSpec:
    """What a Mamba-2 layer remembers: last inputs of x, B and C, and a matrix a head."""
    channels = num_heads * head_dim + 2 * num_groups * state_size
    return MambaSpec(channels, kernel, (num_heads, head_dim, state_size))


def dt_limit(config: Config) -> tuple[float, float]:
    """`time_step_limit`, no limit where it is left out.

    `transformers` writes what JSON has no number for as {"__float__": "Infinity"}.
    """
    low, high = (
        float(value["__float__"] if isinstance(value, dict) else value)
        for value in config.get("time_step_limit") or (0.0, math.inf)
    )
    return low, high


def check_groups(config: Config, heads: str, groups: str) -> None:
    """Raise ValueError unless the heads divide into groups that share B and C."""
    if config[heads] % config[groups]:
        raise ValueError(f"{heads} {config[heads]} is not a multiple of {groups} {config[groups]}")
    low, high = dt_limit(config)
    if not 0.0 <= low < high:
        raise ValueError(f"time_step_limit must be two rising numbers from 0, got [{low}, {high}]")


def layer_specs(config: Config) -> list[LayerSpecs]:
    """All layers remember the same."""
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
    check_groups(config, "num_heads", "n_groups")


ARCHITECTURES = {
    "Mamba2ForCausalLM": Architecture(
        model="mamba2.Mamba2ForCausalLM",
        layer_specs=layer_specs,
        required=("hidden_size", "num_hidden_layers", "vocab_size", "num_heads", "head_dim"),
        check=check,
        defaults={
            "layer_norm_epsilon": 1e-5,
            "hidden_act": "silu",
            "rms_norm": True,
            "state_size": 128,
            "n_groups": 8,
            "conv_kernel": 4,
            "use_bias": False,
            "use_conv_bias": True,
        },
    )
}
