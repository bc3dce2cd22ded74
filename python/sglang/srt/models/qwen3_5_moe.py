"""Qwen3.5 with experts, text: its layers with a mixture of experts for each MLP."""

from __future__ import annotations

from typing import Any

from sglang.srt.layers.linear import WeightFactory
from sglang.srt.layers.mlp import GatedMLP
from sglang.srt.layers.moe import STACKED, ExpertShape, MoE, Routing, SharedExpert
from sglang.srt.layers.residual import Part
from sglang.srt.models.qwen3_5 import Qwen3_5ForCausalLM


def qwen_experts(text: dict[str, Any], factory: WeightFactory, shared_width: int | None) -> MoE:
    """Softmax routing; a shared expert with a sigmoid gate if it is given a width."""
    hidden = text["hidden_size"]
    routing = Routing(
        text["num_experts"], text["num_experts_per_tok"], normalise=text["norm_topk_prob"]
    )
    shared = None
    if shared_width is not None:
        shared = SharedExpert(
            GatedMLP(hidden, shared_width, factory), gate_name="shared_expert_gate"
        )
    return MoE(routing, ExpertShape(hidden, text["moe_intermediate_size"]), factory, shared)


class Qwen3_5MoeForCausalLM(Qwen3_5ForCausalLM):
    """Also the language model of `Qwen3_5MoeForConditionalGeneration`."""

    STACKED_EXPERTS = STACKED

    @staticmethod
    def feed_forward(text: dict[str, Any], layer_id: int, factory: WeightFactory) -> Part:
        """The second half of a layer: experts in all of them."""
        return qwen_experts(text, factory, text["shared_expert_intermediate_size"])
