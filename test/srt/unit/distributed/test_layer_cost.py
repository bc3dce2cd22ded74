"""What layers cost, and how that shares them among stages."""

from __future__ import annotations

from sglang.srt.distributed.layer_split import split_layers
from sglang.srt.model_executor.layer_cost import TYPICAL_CONTEXT, estimate_layer_costs
from sglang.srt.models.config import ModelConfig
from support.tiny_models import shared_model


def test_costs_are_the_operations_of_a_token() -> None:
    model = ModelConfig.from_path(str(shared_model("small")))
    costs = estimate_layer_costs(model)
    # norms 2 * 64; MLP 3 * 64 * 96
    both = 2 * 64 + 3 * 64 * 96
    # q and gate 256, k and v 64 each, out 128 * 64, norms 2 * 32
    attention = 64 * (256 + 64 + 64) + 128 * 64 + 2 * 32
    # qkv 128, z 64, b and a 4 each, out 64 * 64; conv 128 * 4, A_log and dt_bias 4 each, norm 16
    delta_net = 64 * (128 + 64 + 4 + 4) + 64 * 64 + 128 * 4 + 4 + 4 + 16
    looked_at = min(TYPICAL_CONTEXT, 2048) / 2
    linear_cost = 2 * (both + delta_net) + 6 * (4 * 16 * 16)
    attention_cost = 2 * (both + attention) + 2 * looked_at * 4 * (32 + 32)
    assert costs.layers == [linear_cost, linear_cost, linear_cost, attention_cost]
    assert costs.head == 2 * 300 * 64


def test_a_dear_attention_layer_gets_fewer_neighbours() -> None:
    """Seven layers on two stages: the stage with the attention layers gets three of them."""
    kinds = ["linear_attention"] * 3 + ["full_attention"] + ["linear_attention"] * 2
    costs = [1.0 if kind == "linear_attention" else 3.0 for kind in kinds]
    assert split_layers([*costs, 3.0], 2) == [(0, 4), (4, 7)]
    assert split_layers([3.0, 3.0, *[1.0] * 5], 2) == [(0, 3), (3, 7)]
