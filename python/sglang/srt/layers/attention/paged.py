"""Attention of one layer over the paged KV pool, for batches that mix decode and prefill rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from sglang.srt.kernels.registry import get_op

if TYPE_CHECKING:
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch


class PagedAttention:
    """Stores the step's keys and values, then attends: decode rows together, prompts row by row."""

    def __init__(self, layer_id: int, scale: float, device: str) -> None:
        self._layer_id = layer_id
        self._scale = scale
        self._prefill = get_op("attention_prefill", device)
        self._decode = get_op("attention_decode", device)

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, batch: ForwardBatch
    ) -> torch.Tensor:
        """q: [tokens, heads, dim]; k, v: [tokens, kv_heads, dim]. Returns q with v's dim."""
        batch.kv_pool.set_kv_buffer(self._layer_id, batch.out_cache_loc, k, v)
        kv = batch.kv_pool.get_kv_buffer(self._layer_id)
        scale = self._scale
        return batch.by_kind(
            lambda rows: self._decode(q[rows], kv, batch.decode_layout, scale),
            lambda rows: self._prefill(
                q[rows], k[rows], v[rows], kv, batch.prefix_slots, batch.prefill_bounds, scale
            ),
        )
