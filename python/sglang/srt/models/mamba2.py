"""Mamba-2 alone: every layer a mixer, no MLP, no attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sglang.srt.layers.layernorm import RMSNorm
from sglang.srt.layers.linear import WeightFactory
from sglang.srt.layers.mamba.mamba2 import Mamba2Mixer, Mamba2Shape, OutputNorm
from sglang.srt.layers.residual import Residual, ResidualBlock
from sglang.srt.models.causal_lm import CausalLM, Ends
from sglang.srt.models.configs.mamba2 import dt_limit

if TYPE_CHECKING:
    from sglang.srt.models.config import ModelConfig


class Mamba2ForCausalLM(CausalLM):
    """Names in its checkpoints are those of the original implementation."""

    RENAMED = (
        ("backbone.embeddings.", "model.embed_tokens."),
        ("backbone.norm_f.", "model.norm."),
        ("backbone.", "model."),
    )

    def __init__(
        self, config: ModelConfig, layers: tuple[int, int], factory: WeightFactory
    ) -> None:
        text, eps = config.text, config.text["layer_norm_epsilon"]
        shape = Mamba2Shape(
            config.hidden_size,
            text["num_heads"],
            text["head_dim"],
            text["n_groups"],
            text["state_size"],
            text["conv_kernel"],
            conv_bias=text["use_conv_bias"],
            proj_bias=text["use_bias"],
            dt_limit=dt_limit(text),
            norm=OutputNorm(eps),
        )

        def block(layer_id: int) -> ResidualBlock:
            norm = RMSNorm("norm", config.hidden_size, eps, factory)
            return ResidualBlock(Residual(norm, "mixer", Mamba2Mixer(shape, layer_id, factory)))

        super().__init__(config, layers, factory, block, Ends(eps))
