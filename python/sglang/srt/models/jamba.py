"""Jamba: Mamba and attention without positions, each before an MLP or a mixture of experts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sglang.srt.layers.attention.attention import Attention, AttentionOptions
from sglang.srt.layers.layernorm import RMSNorm
from sglang.srt.layers.linear import WeightFactory
from sglang.srt.layers.mamba.selective import SelectiveShape, SelectiveSSM
from sglang.srt.layers.mlp import GatedMLP
from sglang.srt.layers.moe import STACKED, ExpertShape, MoE, Routing
from sglang.srt.layers.residual import Part, Residual, ResidualBlock
from sglang.srt.models.causal_lm import CausalLM, Ends
from sglang.srt.models.configs.jamba import attends, channels, dt_rank, has_experts

if TYPE_CHECKING:
    from sglang.srt.models.config import ModelConfig


def _mamba(text: dict[str, Any], layer_id: int, factory: WeightFactory) -> SelectiveSSM:
    shape = SelectiveShape(
        text["hidden_size"],
        channels(text),
        text["mamba_d_state"],
        text["mamba_d_conv"],
        dt_rank(text),
        conv_bias=text["mamba_conv_bias"],
        proj_bias=text["mamba_proj_bias"],
        norm_eps=text["rms_norm_eps"],
    )
    return SelectiveSSM(shape, layer_id, factory)


def _attention(text: dict[str, Any], layer_id: int, factory: WeightFactory) -> Attention:
    options = AttentionOptions(
        text["hidden_size"],
        text["num_attention_heads"],
        text["num_key_value_heads"],
        text["head_dim"],
    )
    return Attention(options, layer_id, factory, None)


def _feed_forward(text: dict[str, Any], layer_id: int, factory: WeightFactory) -> Part:
    hidden, width = text["hidden_size"], text["intermediate_size"]
    if not has_experts(text, layer_id):
        return GatedMLP(hidden, width, factory)
    routing = Routing(
        text["num_experts"], text["num_experts_per_tok"], normalise=False, name="router"
    )
    return MoE(routing, ExpertShape(hidden, width), factory)


class JambaForCausalLM(CausalLM):
    """Its final norm has a name of its own."""

    RENAMED = (("model.final_layernorm.", "model.norm."),)
    STACKED_EXPERTS = STACKED

    def __init__(
        self, config: ModelConfig, layers: tuple[int, int], factory: WeightFactory
    ) -> None:
        text, eps, hidden = config.text, config.text["rms_norm_eps"], config.hidden_size

        def block(layer_id: int) -> ResidualBlock:
            norm = RMSNorm("input_layernorm", hidden, eps, factory)
            if attends(text, layer_id):
                mixer = Residual(norm, "self_attn", _attention(text, layer_id, factory))
            else:
                mixer = Residual(norm, "mamba", _mamba(text, layer_id, factory))
            second = _feed_forward(text, layer_id, factory)
            return ResidualBlock(
                mixer,
                Residual(RMSNorm("pre_ff_layernorm", hidden, eps, factory), "feed_forward", second),
            )

        super().__init__(config, layers, factory, block, Ends(eps))
