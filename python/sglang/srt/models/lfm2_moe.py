"""LFM2 with experts: sigmoid routing whose bias counts for the choice alone."""

from __future__ import annotations

from typing import Any

from sglang.srt.layers.linear import WeightFactory
from sglang.srt.layers.mlp import GatedMLP
from sglang.srt.layers.moe import ExpertShape, MoE, Routing
from sglang.srt.layers.residual import Part
from sglang.srt.models.lfm2 import MLP_NAMES, Lfm2ForCausalLM


class Lfm2MoeForCausalLM(Lfm2ForCausalLM):
    """LFM2's layers; the first `num_dense_layers` have one MLP, the others experts."""

    STACKED_EXPERTS = {  # noqa: RUF012
        "experts.gate_up_proj": ("w1", "w3"),
        "experts.down_proj": ("w2",),
    }

    @staticmethod
    def feed_forward(text: dict[str, Any], layer_id: int, factory: WeightFactory) -> Part:
        """The second half of a layer."""
        hidden = text["hidden_size"]
        if layer_id < text["num_dense_layers"]:
            return GatedMLP(hidden, text["intermediate_size"], factory, MLP_NAMES)
        routing = Routing(
            text["num_experts"],
            text["num_experts_per_tok"],
            "sigmoid",
            normalise=text["norm_topk_prob"],
            sum_eps=1e-6,
            scale=text["routed_scaling_factor"],
            bias_name="expert_bias" if text["use_expert_bias"] else None,
        )
        gate, up, down = MLP_NAMES
        shape = ExpertShape(
            hidden, text["moe_intermediate_size"], in_names=(gate, up), out_name=down
        )
        return MoE(routing, shape, factory)
