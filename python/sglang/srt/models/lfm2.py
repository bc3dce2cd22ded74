"""LFM2: double-gated short convolutions and grouped-query attention, each before an MLP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sglang.srt.layers.attention.attention import Attention, AttentionOptions
from sglang.srt.layers.layernorm import RMSNorm
from sglang.srt.layers.linear import WeightFactory
from sglang.srt.layers.mamba.short_conv import ShortConv
from sglang.srt.layers.mlp import GatedMLP
from sglang.srt.layers.residual import Part, Residual, ResidualBlock
from sglang.srt.layers.rotary import RotaryEmbedding
from sglang.srt.models.causal_lm import CausalLM, Ends
from sglang.srt.models.configs.lfm2 import layer_types, mlp_width
from sglang.srt.models.rope_config import rope_settings

if TYPE_CHECKING:
    from sglang.srt.models.config import ModelConfig

MLP_NAMES = ("w1", "w3", "w2")  # gate, up, down


def _attention(
    text: dict[str, Any], layer_id: int, factory: WeightFactory, rotary: RotaryEmbedding
) -> Attention:
    options = AttentionOptions(
        text["hidden_size"],
        text["num_attention_heads"],
        text["num_key_value_heads"],
        text["head_dim"],
        out_name="out_proj",
        qk_norm_eps=text["norm_eps"],
        qk_norm_names=("q_layernorm", "k_layernorm"),
    )
    return Attention(options, layer_id, factory, rotary)


class Lfm2ForCausalLM(CausalLM):
    """Its norm after the last layer is called that of the embedding."""

    RENAMED = (("model.embedding_norm.", "model.norm."),)

    def __init__(
        self, config: ModelConfig, layers: tuple[int, int], factory: WeightFactory
    ) -> None:
        text, eps, hidden = config.text, config.text["norm_eps"], config.hidden_size
        rope, kinds = rope_settings(text), layer_types(text)
        rotary = RotaryEmbedding(rope, factory.device)

        def block(layer_id: int) -> ResidualBlock:
            norm = RMSNorm("operator_norm", hidden, eps, factory)
            if kinds[layer_id] == "full_attention":
                mixer = Residual(norm, "self_attn", _attention(text, layer_id, factory, rotary))
            else:
                conv = ShortConv(hidden, text["conv_L_cache"], text["conv_bias"], layer_id, factory)
                mixer = Residual(norm, "conv", conv)
            mlp = self.feed_forward(text, layer_id, factory)
            second = Residual(RMSNorm("ffn_norm", hidden, eps, factory), "feed_forward", mlp)
            return ResidualBlock(mixer, second)

        super().__init__(config, layers, factory, block, Ends(eps))

    @staticmethod
    def feed_forward(text: dict[str, Any], layer_id: int, factory: WeightFactory) -> Part:
        """The second half of a layer."""
        return GatedMLP(text["hidden_size"], mlp_width(text), factory, MLP_NAMES)
