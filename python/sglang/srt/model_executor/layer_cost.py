"""What each layer of a model costs, estimated from its weights, to share layers among stages."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import torch

from sglang.srt.layers.linear import WeightFactory
from sglang.srt.mem_cache.layer_specs import AttentionSpec, MambaSpec
from sglang.srt.models.config import ModelConfig
from sglang.srt.models.registry import model_class

# Tokens that a step is taken to look back on; longer contexts make attention layers dearer.
TYPICAL_CONTEXT = 4096

_LAYER = re.compile(r"model\.layers\.(\d+)\.")


@dataclass(frozen=True)
class LayerCosts:
    """Floating point operations of one token, in each layer and in the LM head."""

    layers: list[float]
    head: float


def estimate_layer_costs(model: ModelConfig) -> LayerCosts:
    """Count the operations of one token.

    Two for each weight that takes part (of routed experts those of the chosen ones), those of
    scores and values over half of `TYPICAL_CONTEXT` tokens (or the model's context), and reading
    and writing each value of a recurrent state. The model is built without memory for its weights.
    The head counts in full: it takes part in every decode step, though not in prompt chunks.
    """
    text = model.text
    network = model_class(model.architecture)(
        model, (0, model.num_layers), WeightFactory(torch.float32, "meta")
    )
    costs = [0.0] * model.num_layers
    for name, weight in network.targets().items():
        layer = _LAYER.match(name)
        if layer is not None:
            costs[int(layer.group(1))] += 2.0 * weight.numel() * _share_used(name, text)
    looked_at = min(TYPICAL_CONTEXT, model.context_len) / 2
    heads = int(text.get("num_attention_heads") or 0)
    for number, specs in enumerate(model.layer_specs):
        for spec in specs:
            if isinstance(spec, AttentionSpec):
                costs[number] += 2.0 * looked_at * heads * (spec.head_dim + spec.v_head_dim)
            elif isinstance(spec, MambaSpec) and spec.state_shape:
                costs[number] += 6.0 * math.prod(spec.state_shape)
    return LayerCosts(costs, 2.0 * model.vocab_size * model.hidden_size)


def _share_used(name: str, text: dict[str, Any]) -> float:
    """Which part of a weight a token meets: all of it, or what top-k routing chooses."""
    if ".experts." not in name:
        return 1.0
    chosen = text.get("num_experts_per_tok")
    total = text.get("num_experts") or text.get("num_local_experts") or text.get("n_routed_experts")
    if not isinstance(chosen, int) or not isinstance(total, int):
        return 1.0
    return chosen / total
