"""Falcon-H1 (arXiv:2507.22448): attention and Mamba-2 side by side in every layer, then an MLP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sglang.srt.layers.attention.attention import Attention
from sglang.srt.layers.layernorm import RMSNorm
from sglang.srt.layers.linear import WeightFactory
from sglang.srt.layers.mamba.mamba2 import Mamba2Mixer
from sglang.srt.layers.mlp import GatedMLP
from sglang.srt.layers.parallel import Branch, Parallel
from sglang.srt.layers.residual import Residual, ResidualBlock
from sglang.srt.layers.rotary import RotaryEmbedding
from sglang.srt.models.bamba import attention_options, mamba_options
from sglang.srt.models.causal_lm import CausalLM, Ends
from sglang.srt.models.rope_config import rope_settings

if TYPE_CHECKING:
    from sglang.srt.models.config import ModelConfig


class FalconH1ForCausalLM(CausalLM):
    """Every projection has a multiplier (muP). That of keys is applied to scores instead, which
    are linear in them: the pool then holds keys without it."""

    RENAMED = (("model.final_layernorm.", "model.norm."),)

    def __init__(
        self, config: ModelConfig, layers: tuple[int, int], factory: WeightFactory
    ) -> None:
        text, eps, hidden = config.text, config.text["rms_norm_eps"], config.hidden_size
        rope = rope_settings(text)
        rotary = RotaryEmbedding(rope, factory.device)
        attention = attention_options(text, text["key_multiplier"] * text["head_dim"] ** -0.5)
        mamba = mamba_options(
            text,
            norm_eps=eps if text["mamba_rms_norm"] else None,
            norm_groups=text["mamba_n_groups"],
            gate_first=not text["mamba_norm_before_gate"],
            out_bias=text["projectors_bias"],
            multipliers=tuple(text["ssm_multipliers"]),
        )
        mlp_scales = (text["mlp_multipliers"][0], text["mlp_multipliers"][1])

        def block(layer_id: int) -> ResidualBlock:
            both = Parallel(
                Branch(
                    "mamba",
                    Mamba2Mixer(mamba, layer_id, factory),
                    text["ssm_in_multiplier"],
                    text["ssm_out_multiplier"],
                ),
                Branch(
                    "self_attn",
                    Attention(attention, layer_id, factory, rotary),
                    text["attention_in_multiplier"],
                    text["attention_out_multiplier"],
                ),
            )
            width = text["intermediate_size"]
            mlp = GatedMLP(hidden, width, factory, scales=mlp_scales)
            first = RMSNorm("input_layernorm", hidden, eps, factory)
            second = RMSNorm("pre_ff_layernorm", hidden, eps, factory)
            return ResidualBlock(Residual(first, "", both), Residual(second, "feed_forward", mlp))

        ends = Ends(eps, text["embedding_multiplier"], text["lm_head_multiplier"])
        super().__init__(config, layers, factory, block, ends)
