"""Mamba-2: recurrent layers throughout."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sglang.srt.layers.layernorm import RMSNorm
from sglang.srt.layers.linear import WeightFactory
from sglang.srt.layers.mamba.mamba2 import Mamba2Mixer, Mamba2Options
from sglang.srt.layers.residual import Residual, ResidualBlock
from sglang.srt.models.causal_lm import CausalLM, Ends
from sglang.srt.models.configs.mamba2 import dt_limit

if TYPE_CHECKING:
    from sglang.srt.models.config import ModelConfig


class Mamba2ForCausalLM(CausalLM):
    """Also what `state-spaces/mamba2` checkpoints are called once converted."""

    RENAMED = (
        ("backbone.embeddings.", "model.embed_tokens."),
        ("backbone.embedding.", "model.embed_tokens."),
        ("backbone.norm_f.", "model.norm."),
        ("backbone.", "model."),
    )

    def __init__(
        self, config: ModelConfig, layers: tuple[int, int], factory: WeightFactory
    ) -> None:
        text, eps, hidden = config.text, config.text["layer_norm_epsilon"], config.hidden_size
        options = Mamba2Options(
            hidden,
            text["num_heads"],
            text["head_dim"],
            text["n_groups"],
            text["state_size"],
            text["conv_kernel"],
            norm_eps=eps,
            conv_bias=text["use_conv_bias"],
            in_bias=text["use_bias"],
            out_bias=text["use_bias"],
            dt_limit=dt_limit(text),
        )

        def block(layer_id: int) -> ResidualBlock:
            mixer = Mamba2Mixer(options, layer_id, factory)
            return ResidualBlock(Residual(RMSNorm("norm", hidden, eps, factory), "mixer", mixer))

        super().__init__(config, layers, factory, block, Ends(eps))
