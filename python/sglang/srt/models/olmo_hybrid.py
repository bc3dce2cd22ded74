"""OLMo Hybrid: delta nets normalised in front, attention normalised behind, MLPs after both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sglang.srt.layers.attention.attention import Attention, AttentionOptions
from sglang.srt.layers.layernorm import RMSNorm
from sglang.srt.layers.linear import WeightFactory
from sglang.srt.layers.mamba.gated_delta_net import DeltaNetOptions, GatedDeltaNet
from sglang.srt.layers.mlp import GatedMLP
from sglang.srt.layers.residual import Residual, ResidualBlock
from sglang.srt.layers.rotary import RotaryEmbedding
from sglang.srt.models.causal_lm import CausalLM, Ends
from sglang.srt.models.configs.olmo_hybrid import has_rope
from sglang.srt.models.rope_config import rope_settings

if TYPE_CHECKING:
    from sglang.srt.models.config import ModelConfig


def _attention_options(text: dict[str, Any]) -> AttentionOptions:
    return AttentionOptions(
        text["hidden_size"],
        text["num_attention_heads"],
        text["num_key_value_heads"],
        text["head_dim"],
        qkv_bias=text["attention_bias"],
        out_bias=text["attention_bias"],
        qk_norm_eps=text["rms_norm_eps"],
        qk_norm_whole=True,
    )


def _delta_net_options(text: dict[str, Any]) -> DeltaNetOptions:
    return DeltaNetOptions(
        qkv_names=("q_proj", "k_proj", "v_proj"),
        conv_names=("q_conv1d", "k_conv1d", "v_conv1d"),
        gate_name="g_proj",
        strength_name="b_proj",
        decay_name="a_proj",
        norm_name="o_norm",
        out_name="o_proj",
        norm_eps=1e-5,  # whatever the config says of the other norms
        max_strength=2.0 if text["linear_allow_neg_eigval"] else 1.0,
    )


class OlmoHybridForCausalLM(CausalLM):
    """The two kinds of layer have their norms in different places."""

    def __init__(
        self, config: ModelConfig, layers: tuple[int, int], factory: WeightFactory
    ) -> None:
        text, eps, hidden = config.text, config.text["rms_norm_eps"], config.hidden_size
        rotary = None
        if has_rope(text):
            rope = rope_settings(text)
            rotary = RotaryEmbedding(rope, factory.device)
        options, delta_net = _attention_options(text), _delta_net_options(text)

        def norm(name: str) -> RMSNorm:
            return RMSNorm(name, hidden, eps, factory)

        def block(layer_id: int) -> ResidualBlock:
            mlp = GatedMLP(hidden, text["intermediate_size"], factory)
            if text["layer_types"][layer_id] == "full_attention":
                attention = Attention(options, layer_id, factory, rotary)
                return ResidualBlock(
                    Residual(None, "self_attn", attention, norm("post_attention_layernorm")),
                    Residual(None, "mlp", mlp, norm("post_feedforward_layernorm")),
                )
            mixer = GatedDeltaNet(text, layer_id, factory, delta_net)
            return ResidualBlock(
                Residual(norm("input_layernorm"), "linear_attn", mixer),
                Residual(norm("post_attention_layernorm"), "mlp", mlp),
            )

        super().__init__(config, layers, factory, block, Ends(eps))

    @classmethod
    def canonical_name(cls, name: str) -> str:
        """Checkpoints have other names for the norms around delta nets."""
        return name.replace(".attention_layer_norm.", ".input_layernorm.").replace(
            ".feedforward_layer_norm.", ".post_attention_layernorm."
        )
