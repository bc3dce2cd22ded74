"""Granite 4.0-H: Mamba-2 or attention, then a shared MLP and, in the larger ones, experts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sglang.srt.layers.attention.attention import Attention
from sglang.srt.layers.layernorm import RMSNorm
from sglang.srt.layers.linear import WeightFactory
from sglang.srt.layers.mamba.mamba2 import Mamba2Mixer, OutputNorm
from sglang.srt.layers.mlp import GatedMLP
from sglang.srt.layers.moe import ExpertShape, MoE, Routing, SharedExpert
from sglang.srt.layers.residual import Residual, ResidualBlock
from sglang.srt.layers.rotary import RotaryEmbedding
from sglang.srt.models.bamba import attention_options, mamba2_shape
from sglang.srt.models.causal_lm import CausalLM, Ends
from sglang.srt.models.configs.granite_hybrid import layer_types
from sglang.srt.models.rope_config import rope_settings

if TYPE_CHECKING:
    from sglang.srt.models.config import ModelConfig


def _feed_forward(text: dict[str, Any], norm: RMSNorm, factory: WeightFactory) -> Residual:
    """The shared MLP, alone or beside the experts. Weights of the chosen experts are a softmax
    over them alone, which is a softmax over all that is normalised again."""
    hidden = text["hidden_size"]
    names = ("input_linear", "output_linear")
    shared = GatedMLP(hidden, text["shared_intermediate_size"], factory, names)
    if not text["num_local_experts"]:
        return Residual(norm, "block_sparse_moe.shared_mlp", shared)
    routing = Routing(text["num_local_experts"], text["num_experts_per_tok"], name="router.layer")
    shape = ExpertShape(hidden, text["intermediate_size"])
    experts = MoE(routing, shape, factory, SharedExpert(shared, "shared_mlp"))
    return Residual(norm, "block_sparse_moe", experts)


class GraniteMoeHybridForCausalLM(CausalLM):
    """With Granite's multipliers of embedding, residuals, scores and logits."""

    STACKED_EXPERTS = {  # noqa: RUF012
        "input_linear.weight": ("gate_proj", "up_proj"),
        "output_linear.weight": ("down_proj",),
    }

    def __init__(
        self, config: ModelConfig, layers: tuple[int, int], factory: WeightFactory
    ) -> None:
        text, eps, hidden = config.text, config.text["rms_norm_eps"], config.hidden_size
        rotary: RotaryEmbedding | None = None
        if text["position_embedding_type"] == "rope":
            rope = rope_settings(text)
            rotary = RotaryEmbedding(rope, factory.device)
        shape, kinds = mamba2_shape(text, OutputNorm(eps)), layer_types(text)
        options = attention_options(text, float(text["attention_multiplier"]))

        def block(layer_id: int) -> ResidualBlock:
            norm = RMSNorm("input_layernorm", hidden, eps, factory)
            if kinds[layer_id] == "attention":
                attention = Attention(options, layer_id, factory, rotary)
                mixer = Residual(norm, "self_attn", attention)
            else:
                mixer = Residual(norm, "mamba", Mamba2Mixer(shape, layer_id, factory))
            post_norm = RMSNorm("post_attention_layernorm", hidden, eps, factory)
            second = _feed_forward(text, post_norm, factory)
            return ResidualBlock(mixer, second, scale=float(text["residual_multiplier"]))

        ends = Ends(eps, float(text["embedding_multiplier"]), 1.0 / float(text["logits_scaling"]))
        super().__init__(config, layers, factory, block, ends)

    @classmethod
    def canonical_name(cls, name: str) -> str:
        """In checkpoints the shared MLP stands beside the experts, here among them."""
        return name.replace(".shared_mlp.", ".block_sparse_moe.shared_mlp.")
