"""Bamba: Mamba-2 layers with an attention layer now and then, each before an MLP."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sglang.srt.layers.attention.attention import Attention, AttentionOptions
from sglang.srt.layers.layernorm import RMSNorm
from sglang.srt.layers.linear import WeightFactory
from sglang.srt.layers.mamba.mamba2 import Mamba2Mixer, Mamba2Options
from sglang.srt.layers.mlp import GatedMLP
from sglang.srt.layers.residual import Residual, ResidualBlock
from sglang.srt.layers.rotary import RotaryEmbedding
from sglang.srt.models.causal_lm import CausalLM, Ends
from sglang.srt.models.configs.bamba import attends, mamba_head_dim, rotary_dim
from sglang.srt.models.configs.mamba2 import dt_limit
from sglang.srt.models.rope_config import rope_settings

if TYPE_CHECKING:
    from sglang.srt.models.config import ModelConfig


def mamba_options(text: dict[str, Any], **others: Any) -> Mamba2Options:
    """The Mamba-2 layer of a config in Bamba's words; others: what a family does besides."""
    return Mamba2Options(
        text["hidden_size"],
        text["mamba_n_heads"],
        mamba_head_dim(text),
        text["mamba_n_groups"],
        text["mamba_d_state"],
        text["mamba_d_conv"],
        **{
            "norm_eps": text["rms_norm_eps"],
            "conv_bias": text["mamba_conv_bias"],
            "in_bias": text["mamba_proj_bias"],
            "out_bias": text["mamba_proj_bias"],
            "dt_limit": dt_limit(text),
            **others,
        },
    )


def attention_options(text: dict[str, Any], scale: float | None = None) -> AttentionOptions:
    """The attention layer of such a config."""
    return AttentionOptions(
        text["hidden_size"],
        text["num_attention_heads"],
        text["num_key_value_heads"],
        text["head_dim"],
        scale=scale,
        qkv_bias=text["attention_bias"],
        out_bias=text["attention_bias"],
    )


class BambaForCausalLM(CausalLM):
    """Its final norm has a name of its own."""

    RENAMED = (("model.final_layernorm.", "model.norm."),)

    def __init__(
        self, config: ModelConfig, layers: tuple[int, int], factory: WeightFactory
    ) -> None:
        text, eps, hidden = config.text, config.text["rms_norm_eps"], config.hidden_size
        rope = replace(rope_settings(text), rotary_dim=rotary_dim(text))
        rotary = RotaryEmbedding(rope, factory.device)
        mamba, attention = mamba_options(text), attention_options(text)

        def block(layer_id: int) -> ResidualBlock:
            norm = RMSNorm("input_layernorm", hidden, eps, factory)
            if attends(text, layer_id):
                own = Attention(attention, layer_id, factory, rotary)
                mixer = Residual(norm, "self_attn", own)
            else:
                mixer = Residual(norm, "mamba", Mamba2Mixer(mamba, layer_id, factory))
            mlp = GatedMLP(hidden, text["intermediate_size"], factory)
            second = RMSNorm("pre_ff_layernorm", hidden, eps, factory)
            return ResidualBlock(mixer, Residual(second, "feed_forward", mlp))

        super().__init__(config, layers, factory, block, Ends(eps))
