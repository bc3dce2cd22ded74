"""What the runtime must know of each architecture from its config alone (no torch).

A new architecture adds one entry here and one model file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sglang.srt.mem_cache.layer_specs import AttentionSpec, LayerSpecs, MambaSpec

Config = dict[str, Any]


@dataclass(frozen=True)
class Architecture:
    """An architecture's view of a config.

    layer_specs: what each layer remembers. required: fields that a config must have, all of them
    positive integers. defaults: values of fields that it may lack. check: raises ValueError, naming
    the field, on a value that the model class does not implement.
    """

    layer_specs: Callable[[Config], list[LayerSpecs]]
    required: tuple[str, ...]
    check: Callable[[Config], None]
    defaults: Config = field(default_factory=dict)

    def complete(self, config: Config) -> Config:
        """The config with its defaults filled in.

        Raises ValueError naming a field that is missing or has a value that cannot be served.
        """
        missing = [name for name in self.required if config.get(name) is None]
        if missing:
            raise ValueError(f"lacks {', '.join(missing)}")
        for name in self.required:
            if not isinstance(config[name], int) or config[name] < 1:
                raise ValueError(f"{name} must be a positive integer, got {config[name]!r}")
        if config.get("quantization_config"):
            method = config["quantization_config"].get("quant_method", "unknown")
            raise ValueError(f"quantization_config: quantised weights ({method}) are not supported")
        full = {**self.defaults, **config}
        self.check(full)
        return full


@dataclass(frozen=True)
class RopeSettings:
    """Rotary embedding: base wavelength, and how many values of a head are rotated."""

    theta: float
    rotary_dim: int


def rope_settings(config: Config) -> RopeSettings:
    """Read `rope_parameters`, or `rope_theta` and `partial_rotary_factor` of older configs.

    Text positions are the same in all sections of Qwen's multimodal rope ("mrope"), which then is
    plain rope. Raises ValueError on a rope type that is not supported.
    """
    parameters: Config = {
        **(config.get("rope_scaling") or {}),
        **(config.get("rope_parameters") or {}),
    }
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind not in ("default", "mrope"):
        raise ValueError(f"rope_type {kind!r} is not supported; supported is 'default'")
    theta: Any = parameters.get("rope_theta", config.get("rope_theta", 10000.0))
    share: Any = parameters.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    rotary_dim = int(config["head_dim"] * share)
    if rotary_dim % 2 or not 0 < rotary_dim <= config["head_dim"]:
        raise ValueError(f"partial_rotary_factor {share} rotates {rotary_dim} values of a head")
    return RopeSettings(float(theta), rotary_dim)


def qwen3_5_layer_types(config: Config) -> list[str]:
    """ "linear_attention" or "full_attention" for each layer."""
    if config.get("layer_types"):
        return list(config["layer_types"])
    every = int(config["full_attention_interval"])
    return [
        "full_attention" if (layer + 1) % every == 0 else "linear_attention"
        for layer in range(config["num_hidden_layers"])
    ]


def qwen3_5_specs(config: Config) -> list[LayerSpecs]:
    """Qwen3.5 text: gated attention keeps KV; a gated delta net keeps its convolution inputs and
    one [key_dim, value_dim] matrix a value head."""
    attention = AttentionSpec(config["num_key_value_heads"], config["head_dim"], config["head_dim"])
    key_dim = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    value_dim = config["linear_num_value_heads"] * config["linear_value_head_dim"]
    delta_net = MambaSpec(
        conv_dim=2 * key_dim + value_dim,
        conv_kernel=config["linear_conv_kernel_dim"],
        state_shape=(
            config["linear_num_value_heads"],
            config["linear_key_head_dim"],
            config["linear_value_head_dim"],
        ),
    )
    return [
        (attention,) if kind == "full_attention" else (delta_net,)
        for kind in qwen3_5_layer_types(config)
    ]


def check_qwen3_5(config: Config) -> None:
    """Raise ValueError on a config that `models/qwen3_5.py` does not implement."""
    if config["hidden_act"] != "silu":
        raise ValueError(f"hidden_act {config['hidden_act']!r} is not supported; supported: 'silu'")
    for many, few in (
        ("num_attention_heads", "num_key_value_heads"),
        ("linear_num_value_heads", "linear_num_key_heads"),
    ):
        if config[many] % config[few]:
            raise ValueError(f"{many} {config[many]} is not a multiple of {few} {config[few]}")
    types = qwen3_5_layer_types(config)
    for kind in types:
        if kind not in ("full_attention", "linear_attention"):
            raise ValueError(f"layer_types: {kind!r} is not supported")
    if len(types) != config["num_hidden_layers"]:
        raise ValueError(
            f"layer_types names {len(types)} layers, num_hidden_layers is "
            f"{config['num_hidden_layers']}"
        )
    rope_settings(config)


_QWEN3_5 = Architecture(
    layer_specs=qwen3_5_specs,
    required=(
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "vocab_size",
        "linear_num_key_heads",
        "linear_num_value_heads",
        "linear_key_head_dim",
        "linear_value_head_dim",
    ),
    check=check_qwen3_5,
    defaults={
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "attention_bias": False,
        "linear_conv_kernel_dim": 4,
        "full_attention_interval": 4,
        "partial_rotary_factor": 0.25,
    },
)

ARCHITECTURES: dict[str, Architecture] = {
    "Qwen3_5ForCausalLM": _QWEN3_5,
    "Qwen3_5ForConditionalGeneration": _QWEN3_5,
}
