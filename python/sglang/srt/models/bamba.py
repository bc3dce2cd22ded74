"""Bamba: Mamba-2 or attention, each before an MLP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sglang.srt.layers.attention.attention import Attention, AttentionOptions
from sglang.srt.layers.layernorm import RMSNorm
from sglang.srt.layers.linear import WeightFactory
from sglang.srt.layers.mamba.mamba2 import Mamba2Mixer, Mamba2Shape, OutputNorm
from sglang.srt.layers.mlp import GatedMLP
from sglang.srt.layers.residual import Residual, ResidualBlock
from sglang.srt.layers.rotary import RotaryEmbedding
from sglang.srt.models.causal_lm import CausalLM, Ends
from sglang.srt.models.configs.bamba import attends
from sglang.srt.models.configs.mamba2 import dt_limit
from sglang.srt.models.rope_config import rope_settings

if TYPE_CHECKING:
    from sglang.srt.models.config import ModelConfig


def mamba2_shape(text: dict[str, Any], norm: OutputNorm | None, **changes: Any) -> Mamba2Shape:
    """The mixer of a config with the field names that Bamba, Granite and Falcon-H1 share."""
    return Mamba2Shape(
        text["hidden_size"],
        text["mamba_n_heads"],
        text["mamba_d_head"],
        text["mamba_n_groups"],
        text["mamba_d_state"],
        text["mamba_d_conv"],
        conv_bias=text["mamba_conv_bias"],
        proj_bias=text["mamba_proj_bias"],
        dt_limit=dt_limit(text),
        norm=norm,
        **changes,
    )


def attention_options(text: dict[str, Any], scale: float | None = None) -> AttentionOptions:
    """Plain attention of a config with the usual field names."""
    bias = bool(text["attention_bias"])
    return AttentionOptions(
        text["hidden_size"],
        text["num_attention_heads"],
        text["num_key_value_heads"],
        text["head_dim"],
        scale=scale,
        qkv_bias=bias,
        out_bias=bias,
    )


class BambaForCausalLM(CausalLM):
    """Its final norm has a name of its own."""

    RENAMED = (("model.final_layernorm.", "model.norm."),)

    def __init__(
        self, config: ModelConfig, layers: tuple[int, int], factory: WeightFactory
    ) -> None:
        text, eps, hidden = config.text, config.text["rms_norm_eps"], config.hidden_size
        rotary = RotaryEmbedding(rope_settings(text), factory.device)
        shape = mamba2_shape(text, OutputNorm(eps))

        def block(layer_id: int) -> ResidualBlock:
            norm = RMSNorm("input_layernorm", hidden, eps, factory)
            if attends(text, layer_id):
                attention = Attention(attention_options(text), layer_id, factory, rotary)
                mixer = Residual(norm, "self_attn", attention)
            else:
                mixer = Residual(norm, "mamba", Mamba2Mixer(shape, layer_id, factory))
            mlp = GatedMLP(hidden, text["intermediate_size"], factory, bias=text["mlp_bias"])
            second = Residual(
                RMSNorm("pre_ff_layernorm", hidden, eps, factory), "feed_forward", mlp
            )
            return ResidualBlock(mixer, second)

        super().__init__(config, layers, factory, block, Ends(eps))
