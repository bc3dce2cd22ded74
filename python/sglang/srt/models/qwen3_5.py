"""Qwen3.5, text: gated delta nets with a gated attention layer every few layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sglang.srt.layers.attention.attention import Attention, AttentionOptions
from sglang.srt.layers.layernorm import RMSNorm
from sglang.srt.layers.linear import WeightFactory
from sglang.srt.layers.mamba.gated_delta_net import GatedDeltaNet
from sglang.srt.layers.mlp import GatedMLP
from sglang.srt.layers.residual import Part, Residual, ResidualBlock
from sglang.srt.layers.rotary import RotaryEmbedding
from sglang.srt.models.causal_lm import CausalLM, Ends
from sglang.srt.models.configs.qwen3_5 import layer_types
from sglang.srt.models.rope_config import rope_settings

if TYPE_CHECKING:
    from sglang.srt.models.config import ModelConfig


def gated_attention(
    text: dict[str, Any], layer_id: int, factory: WeightFactory, rotary: RotaryEmbedding
) -> Attention:
    """Attention with normalised queries and keys, partial rope and a sigmoid gate."""
    bias = bool(text["attention_bias"])
    options = AttentionOptions(
        text["hidden_size"],
        text["num_attention_heads"],
        text["num_key_value_heads"],
        text["head_dim"],
        qkv_bias=bias,
        out_bias=bias,
        qk_norm_eps=text["rms_norm_eps"],
        norm_offset=1.0,
        gated=True,
    )
    return Attention(options, layer_id, factory, rotary)


class Qwen3_5ForCausalLM(CausalLM):
    """Also the language model of `Qwen3_5ForConditionalGeneration`."""

    # Vision tower, draft layers.
    IGNORED_PREFIXES = ("model.visual.", "visual.", "mtp.")
    RENAMED = (("model.language_model.", "model."),)
    NORM_OFFSET = 1.0

    def __init__(
        self, config: ModelConfig, layers: tuple[int, int], factory: WeightFactory
    ) -> None:
        text, eps = config.text, config.text["rms_norm_eps"]
        rope, kinds = rope_settings(text), layer_types(text)
        rotary = RotaryEmbedding(rope, factory.device)

        def norm(name: str) -> RMSNorm:
            return RMSNorm(name, config.hidden_size, eps, factory, self.NORM_OFFSET)

        def block(layer_id: int) -> ResidualBlock:
            if kinds[layer_id] == "full_attention":
                attention = gated_attention(text, layer_id, factory, rotary)
                mixer = Residual(norm("input_layernorm"), "self_attn", attention)
            else:
                delta_net = GatedDeltaNet(text, layer_id, factory)
                mixer = Residual(norm("input_layernorm"), "linear_attn", delta_net)
            mlp = self.feed_forward(text, layer_id, factory)
            return ResidualBlock(mixer, Residual(norm("post_attention_layernorm"), "mlp", mlp))

        super().__init__(config, layers, factory, block, Ends(eps))

    @staticmethod
    def feed_forward(text: dict[str, Any], layer_id: int, factory: WeightFactory) -> Part:
        """The second half of a layer."""
        return GatedMLP(text["hidden_size"], text["intermediate_size"], factory)
