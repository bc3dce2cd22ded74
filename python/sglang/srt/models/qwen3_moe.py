"""Qwen3 with experts: attention with normalised queries and keys, then experts or an MLP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sglang.srt.layers.attention.attention import Attention, AttentionOptions
from sglang.srt.layers.layernorm import RMSNorm
from sglang.srt.layers.linear import WeightFactory
from sglang.srt.layers.mlp import GatedMLP
from sglang.srt.layers.moe import STACKED
from sglang.srt.layers.residual import Part, Residual, ResidualBlock
from sglang.srt.layers.rotary import RotaryEmbedding
from sglang.srt.models.causal_lm import CausalLM, Ends
from sglang.srt.models.configs.qwen3_next import has_experts
from sglang.srt.models.qwen3_5_moe import qwen_experts
from sglang.srt.models.rope_config import rope_settings

if TYPE_CHECKING:
    from sglang.srt.models.config import ModelConfig


class Qwen3MoeForCausalLM(CausalLM):
    """Its experts are those of Qwen's other families, without a shared one."""

    STACKED_EXPERTS = STACKED

    def __init__(
        self, config: ModelConfig, layers: tuple[int, int], factory: WeightFactory
    ) -> None:
        text, eps, hidden = config.text, config.text["rms_norm_eps"], config.hidden_size
        rotary = RotaryEmbedding(rope_settings(text), factory.device)
        options = AttentionOptions(
            hidden,
            text["num_attention_heads"],
            text["num_key_value_heads"],
            text["head_dim"],
            qkv_bias=text["attention_bias"],
            out_bias=text["attention_bias"],
            qk_norm_eps=eps,
        )

        def block(layer_id: int) -> ResidualBlock:
            mlp: Part
            if has_experts(text, layer_id):
                mlp = qwen_experts(text, factory, None)
            else:
                mlp = GatedMLP(hidden, text["intermediate_size"], factory)
            first = RMSNorm("input_layernorm", hidden, eps, factory)
            second = RMSNorm("post_attention_layernorm", hidden, eps, factory)
            attention = Attention(options, layer_id, factory, rotary)
            return ResidualBlock(
                Residual(first, "self_attn", attention), Residual(second, "mlp", mlp)
            )

        super().__init__(config, layers, factory, block, Ends(eps))
