"""Qwen3-Next: Qwen3.5's layers; its checkpoints hold the delta net's projections by key head."""

from __future__ import annotations

from typing import Any

import torch

from sglang.srt.layers.linear import Targets, WeightFactory
from sglang.srt.layers.mlp import GatedMLP
from sglang.srt.layers.residual import Part
from sglang.srt.models.configs.qwen3_next import has_experts
from sglang.srt.models.qwen3_5_moe import Qwen3_5MoeForCausalLM, qwen_experts


class Qwen3NextForCausalLM(Qwen3_5MoeForCausalLM):
    """Projections are put in Qwen3.5's order as they are read, so that nothing is left to run."""

    @staticmethod
    def feed_forward(text: dict[str, Any], layer_id: int, factory: WeightFactory) -> Part:
        """The second half of a layer: experts, or one MLP."""
        if has_experts(text, layer_id):
            return qwen_experts(text, factory, text["shared_expert_intermediate_size"])
        return GatedMLP(text["hidden_size"], text["intermediate_size"], factory)

    def unpack(self, name: str, value: torch.Tensor) -> Targets:
        """Stacked experts; a delta net's `in_proj_qkvz` and `in_proj_ba`.

        Their rows are, for one key head after another, its query, its key, its value heads and
        their gates z; strengths b and decays a of its value heads.
        """
        text = self._config.text
        key_heads = text["linear_num_key_heads"]
        repeat = text["linear_num_value_heads"] // key_heads
        key_dim, values = text["linear_key_head_dim"], repeat * text["linear_value_head_dim"]
        if name.endswith(".in_proj_qkvz.weight"):
            q, k, v, z = _by_key_head(value, key_heads, [key_dim, key_dim, values, values])
            stem = name.removesuffix("qkvz.weight")
            return {f"{stem}qkv.weight": torch.cat([q, k, v]), f"{stem}z.weight": z}
        if name.endswith(".in_proj_ba.weight"):
            b, a = _by_key_head(value, key_heads, [repeat, repeat])
            stem = name.removesuffix("ba.weight")
            return {f"{stem}b.weight": b, f"{stem}a.weight": a}
        return super().unpack(name, value)


def _by_key_head(value: torch.Tensor, key_heads: int, sizes: list[int]) -> list[torch.Tensor]:
    """[key_heads * sum(sizes), inputs] to one [key_heads * size, inputs] for each size.

    Raises ValueError if the rows are not so many.
    """
    if len(value) != key_heads * sum(sizes):
        raise ValueError(f"{len(value)} rows, not {key_heads} times {sum(sizes)}")
    parts = value.view(key_heads, sum(sizes), -1).split(sizes, dim=1)
    return [part.flatten(0, 1) for part in parts]
