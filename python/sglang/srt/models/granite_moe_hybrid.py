"""Granite 4: Mamba-2 or attention, then an MLP for all tokens, beside experts if there are any."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sglang.srt.layers.attention.attention import Attention
from sglang.srt.layers.layernorm import RMSNorm
from sglang.srt.layers.linear import WeightFactory
from sglang.srt.layers.mamba.mamba2 import Mamba2Mixer
from sglang.srt.layers.mlp import GatedMLP
from sglang.srt.layers.moe import ExpertShape, MoE, Routing
from sglang.srt.layers.parallel import Branch, Parallel
from sglang.srt.layers.residual import Residual, ResidualBlock
from sglang.srt.layers.rotary import RotaryEmbedding
from sglang.srt.models.bamba import attention_options, mamba_options
from sglang.srt.models.causal_lm import CausalLM, Ends
from sglang.srt.models.configs.granite_moe_hybrid import has_rope
from sglang.srt.models.rope_config import rope_settings

if TYPE_CHECKING:
    from sglang.srt.models.config import ModelConfig


def _feed_forward(text: dict[str, Any], factory: WeightFactory) -> Parallel:
    hidden, names = text["hidden_size"], ("input_linear", "output_linear")
    shared = GatedMLP(hidden, text["shared_intermediate_size"], factory, names)
    branches = [Branch("shared_mlp", shared)]
    if text["num_local_experts"]:
        # A softmax over the scores of the chosen.
        routing = Routing(
            text["num_local_experts"], text["num_experts_per_tok"], name="router.layer"
        )
        experts = MoE(routing, ExpertShape(hidden, text["intermediate_size"]), factory)
        branches.append(Branch("block_sparse_moe", experts))
    return Parallel(*branches)


class GraniteMoeHybridForCausalLM(CausalLM):
    """Multipliers at both ends, on what each part adds, and on attention scores."""

    STACKED_EXPERTS = {  # noqa: RUF012
        "input_linear.weight": ("gate_proj", "up_proj"),
        "output_linear.weight": ("down_proj",),
    }

    def __init__(
        self, config: ModelConfig, layers: tuple[int, int], factory: WeightFactory
    ) -> None:
        text, eps, hidden = config.text, config.text["rms_norm_eps"], config.hidden_size
        rotary = None
        if has_rope(text):
            rope = rope_settings(text)
            rotary = RotaryEmbedding(rope, factory.device)
        mamba, attention = (
            mamba_options(text),
            attention_options(text, text["attention_multiplier"]),
        )

        def block(layer_id: int) -> ResidualBlock:
            norm = RMSNorm("input_layernorm", hidden, eps, factory)
            if text["layer_types"][layer_id] == "attention":
                own = Attention(attention, layer_id, factory, rotary)
                mixer = Residual(norm, "self_attn", own)
            else:
                mixer = Residual(norm, "mamba", Mamba2Mixer(mamba, layer_id, factory))
            second = RMSNorm("post_attention_layernorm", hidden, eps, factory)
            return ResidualBlock(
                mixer,
                Residual(second, "", _feed_forward(text, factory)),
                scale=text["residual_multiplier"],
            )

        ends = Ends(eps, text["embedding_multiplier"], 1.0 / text["logits_scaling"])
        super().__init__(config, layers, factory, block, ends)
