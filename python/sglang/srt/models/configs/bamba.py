"""Bamba: Mamba-2 layers with an attention layer now and then, each before an MLP."""

from __future__ import annotations

from sglang.srt.mem_cache.layer_specs import AttentionSpec, LayerSpecs, MambaSpec
from sglang.srt.models.architecture import (
    Architecture,
    Config,
    check_choice,
    check_multiple,
    derive_head_dim,
)
from sglang.srt.models.configs.mamba2 import dt_limit, mamba2_spec
from sglang.srt.models.rope_config import rope_settings

# Fields of a Mamba-2 layer that Bamba and those after it share.
MAMBA_DEFAULTS: Config = {
    "hidden_act": "silu",
    "attention_bias": False,
    "mamba_n_heads": 128,
    "mamba_n_groups": 1,
    "mamba_d_state": 256,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_conv_bias": True,
    "mamba_proj_bias": False,
}

REQUIRED = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
)


def mamba_width(config: Config) -> int:
    """Width inside a Mamba-2 layer."""
    return int(config.get("mamba_d_ssm") or config["mamba_expand"] * config["hidden_size"])


def mamba_head_dim(config: Config) -> int:
    """Width of a Mamba-2 head; "auto" shares the layer's width among the heads."""
    dim = config.get("mamba_d_head") or "auto"
    return mamba_width(config) // config["mamba_n_heads"] if dim == "auto" else int(dim)


def mamba_spec(config: Config) -> MambaSpec:
    """What a Mamba-2 layer remembers."""
    return mamba2_spec(
        config["mamba_n_heads"],
        mamba_head_dim(config),
        config["mamba_n_groups"],
        config["mamba_d_state"],
        config["mamba_d_conv"],
    )


def attention_spec(config: Config) -> AttentionSpec:
    """What an attention layer remembers."""
    return AttentionSpec(config["num_key_value_heads"], config["head_dim"], config["head_dim"])


def check_mamba(config: Config) -> None:
    """Raise ValueError on a Mamba-2 or attention layer that the classes do not implement."""
    check_choice(config, "hidden_act", "silu", "swish")
    check_multiple(config, "num_attention_heads", "num_key_value_heads")
    check_multiple(config, "mamba_n_heads", "mamba_n_groups")
    dt_limit(config)
    width = mamba_width(config)
    if config["mamba_n_heads"] * mamba_head_dim(config) != width:
        raise ValueError(
            f"mamba_n_heads {config['mamba_n_heads']} of mamba_d_head {mamba_head_dim(config)} "
            f"do not make the layer's width {width}"
        )


def attends(config: Config, layer: int) -> bool:
    """Whether a layer is attention rather than Mamba-2."""
    return layer in (config.get("attn_layer_indices") or ())


def layer_specs(config: Config) -> list[LayerSpecs]:
    """One or the other."""
    attention, mamba = attention_spec(config), mamba_spec(config)
    return [
        (attention,) if attends(config, layer) else (mamba,)
        for layer in range(config["num_hidden_layers"])
    ]


def rotary_dim(config: Config) -> int:
    """Values of a head that are rotated; published configs say so in `attn_rotary_emb`.

    That is half of a head, which is also what holds without the field. (`transformers` 5.12.1
    rotates whole heads, whatever the config says.)
    """
    return int(config.get("attn_rotary_emb") or rope_settings(config).rotary_dim)


def derived(config: Config) -> Config:
    """What a config leaves to its other fields, or to this family."""
    return {**derive_head_dim(config), "partial_rotary_factor": 0.5}


def check(config: Config) -> None:
    """Raise ValueError on a config that `models/bamba.py` does not implement."""
    check_mamba(config)
    check_choice(config, "mlp_bias", False)
    outside = [
        i for i in config.get("attn_layer_indices") or () if i >= config["num_hidden_layers"]
    ]
    if outside:
        raise ValueError(f"attn_layer_indices: there is no layer {outside[0]}")
    rotated = rotary_dim(config)
    if rotated % 2 or not 0 < rotated <= config["head_dim"]:
        raise ValueError(f"attn_rotary_emb {rotated} of {config['head_dim']} values of a head")


ARCHITECTURES = {
    "BambaForCausalLM": Architecture(
        model="bamba.BambaForCausalLM",
        layer_specs=layer_specs,
        required=(*REQUIRED, "intermediate_size"),
        check=check,
        defaults={**MAMBA_DEFAULTS, "rms_norm_eps": 1e-5, "mlp_bias": False},
        derived=derived,
    )
}
