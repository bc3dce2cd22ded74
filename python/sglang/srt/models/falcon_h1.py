"""Falcon-H1 (arXiv:2507.22448): attention and Mamba-2 of the same input, summed; then an MLP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from sglang.srt.layers.attention.attention import Attention
from sglang.srt.layers.layernorm import RMSNorm
from sglang.srt.layers.linear import Targets, WeightFactory
from sglang.srt.layers.mamba.mamba2 import Mamba2Mixer, Mamba2Shape, OutputNorm
from sglang.srt.layers.mlp import GatedMLP
from sglang.srt.layers.residual import Residual, ResidualBlock
from sglang.srt.layers.rotary import RotaryEmbedding
from sglang.srt.models.bamba import attention_options, mamba2_shape
from sglang.srt.models.causal_lm import CausalLM, Ends
from sglang.srt.models.rope_config import rope_settings

if TYPE_CHECKING:
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch
    from sglang.srt.models.config import ModelConfig


class ParallelMixer:
    """Attention and Mamba-2 beside each other, with their multipliers (muP, arXiv:2203.03466)."""

    def __init__(
        self,
        text: dict[str, Any],
        shape: Mamba2Shape,
        layer_id: int,
        factory: WeightFactory,
        rotary: RotaryEmbedding,
    ) -> None:
        # Keys are multiplied before the rotation, which is linear: their factor goes to the scores.
        scale = float(text["key_multiplier"]) * text["head_dim"] ** -0.5
        self._attention = Attention(attention_options(text, scale), layer_id, factory, rotary)
        self._mamba = Mamba2Mixer(shape, layer_id, factory)
        self._in_scale = float(text["attention_in_multiplier"])
        self._attention_scale = float(text["attention_out_multiplier"])
        self._mamba_scale = float(text["ssm_out_multiplier"])

    def forward(self, x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """[tokens, hidden] to the same."""
        mamba = self._mamba.forward(x, batch)
        attention = self._attention.forward(x * self._in_scale, batch)
        return mamba * self._mamba_scale + attention * self._attention_scale

    def targets(self, prefix: str) -> Targets:
        """Where the checkpoint's tensors go; both lie in the layer itself."""
        layer = prefix.removesuffix("mixer.")
        return {
            **self._attention.targets(f"{layer}self_attn."),
            **self._mamba.targets(f"{layer}mamba."),
        }

    def finish_loading(self) -> None:
        """After all weights are in."""
        self._attention.finish_loading()
        self._mamba.finish_loading()


class FalconH1ForCausalLM(CausalLM):
    """Its final norm has a name of its own."""

    RENAMED = (("model.final_layernorm.", "model.norm."),)

    def __init__(
        self, config: ModelConfig, layers: tuple[int, int], factory: WeightFactory
    ) -> None:
        text, eps, hidden = config.text, config.text["rms_norm_eps"], config.hidden_size
        rotary = RotaryEmbedding(rope_settings(text), factory.device)
        norm = None
        if text["mamba_rms_norm"]:
            norm = OutputNorm(eps, text["mamba_n_groups"], text["mamba_norm_before_gate"])
        whole = float(text["ssm_in_multiplier"])
        scales = tuple(whole * float(value) for value in text["ssm_multipliers"])
        shape = mamba2_shape(text, norm, in_scales=scales)
        gate_scale, out_scale = (float(value) for value in text["mlp_multipliers"])

        def block(layer_id: int) -> ResidualBlock:
            mixer = ParallelMixer(text, shape, layer_id, factory, rotary)
            mlp = GatedMLP(
                hidden,
                text["intermediate_size"],
                factory,
                bias=text["mlp_bias"],
                gate_scale=gate_scale,
                out_scale=out_scale,
            )
            return ResidualBlock(
                Residual(RMSNorm("input_layernorm", hidden, eps, factory), "mixer", mixer),
                Residual(RMSNorm("pre_ff_layernorm", hidden, eps, factory), "feed_forward", mlp),
            )

        ends = Ends(eps, float(text["embedding_multiplier"]), float(text["lm_head_multiplier"]))
        super().__init__(config, layers, factory, block, ends)
