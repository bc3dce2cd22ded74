"""LFM2 (arXiv:2511.23404): short convolutions with an attention layer every few layers."""

from __future__ import annotations

from sglang.srt.mem_cache.layer_specs import AttentionSpec, LayerSpecs, MambaSpec
from sglang.srt.models.architecture import (
    Architecture,
    Config,
    check_layer_types,
    check_multiple,
    derive_head_dim,
)
from sglang.srt.models.rope_config import rope_settings

REQUIRED = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
)
DEFAULTS: Config = {
    "norm_eps": 1e-5,
    "rope_theta": 1000000.0,
    "conv_bias": False,
    "conv_L_cache": 3,
    "tie_word_embeddings": True,
}


def layer_types(config: Config) -> list[str]:
    """ "conv" or "full_attention" for each layer."""
    if config.get("layer_types"):
        return list(config["layer_types"])
    layers = range(config["num_hidden_layers"])
    attending = config.get("full_attn_idxs")
    attending = layers if attending is None else attending
    return ["full_attention" if layer in attending else "conv" for layer in layers]


def mlp_width(config: Config) -> int:
    """Width of the dense MLPs: two thirds of the width named, times a factor, rounded up."""
    width = int(config.get("block_ff_dim") or config["intermediate_size"])
    if not config["block_auto_adjust_ff_dim"]:
        return width
    width = int(2 * width / 3)
    if config["block_ffn_dim_multiplier"] is None:
        return width
    width, step = int(config["block_ffn_dim_multiplier"] * width), config["block_multiple_of"]
    return int(-(-width // step) * step)


def layer_specs(config: Config) -> list[LayerSpecs]:
    """Attention keeps KV, a short convolution its last inputs and nothing else."""
    attention = AttentionSpec(config["num_key_value_heads"], config["head_dim"], config["head_dim"])
    conv = MambaSpec(config["hidden_size"], config["conv_L_cache"], ())
    return [(attention,) if kind == "full_attention" else (conv,) for kind in layer_types(config)]


def check(config: Config) -> None:
    """Raise ValueError on a config that `models/lfm2.py` does not implement."""
    check_multiple(config, "num_attention_heads", "num_key_value_heads")
    check_layer_types(layer_types(config), config, "full_attention", "conv")
    if config.get("tie_embedding") is False and config["tie_word_embeddings"]:
        raise ValueError("tie_embedding false is not supported without tie_word_embeddings false")
    rope_settings(config)


def _check_dense(config: Config) -> None:
    if not (config.get("block_ff_dim") or config.get("intermediate_size")):
        raise ValueError("lacks intermediate_size")
    check(config)


ARCHITECTURES = {
    "Lfm2ForCausalLM": Architecture(
        model="lfm2.Lfm2ForCausalLM",
        layer_specs=layer_specs,
        required=REQUIRED,
        check=_check_dense,
        defaults={
            **DEFAULTS,
            "block_auto_adjust_ff_dim": True,
            "block_ffn_dim_multiplier": 1.0,
            "block_multiple_of": 256,
        },
        derived=derive_head_dim,
    )
}
