"""Grouped-query attention (arXiv:2305.13245) with the variations of the families served."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from sglang.srt.layers.attention.paged import PagedAttention
from sglang.srt.layers.layernorm import RMSNorm
from sglang.srt.layers.linear import Linear, MergedLinear, Targets, WeightFactory
from sglang.srt.layers.rotary import RotaryEmbedding

if TYPE_CHECKING:
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch


@dataclass(frozen=True)
class AttentionOptions:
    """Shape of an attention layer, and what a family does besides.

    scale: of the scores, 1 / sqrt(head_dim) if None. qkv_bias, out_bias: projections with bias.
    qk_norm_eps: queries and keys are normalised per head, by norms named `qk_norm_names`, with
    `norm_offset` on their weights; all heads as one vector if `qk_norm_whole` (arXiv:2501.00656).
    gated: `q_proj` also makes a gate a head, whose sigmoid
    multiplies the output (arXiv:2505.06708).
    """

    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float | None = None
    qkv_bias: bool = False
    out_bias: bool = False
    out_name: str = "o_proj"
    qk_norm_eps: float | None = None
    qk_norm_names: tuple[str, str] = ("q_norm", "k_norm")
    norm_offset: float = 0.0
    qk_norm_whole: bool = False
    gated: bool = False


class Attention:
    """Projections, rotary embedding if there is one, attention over the KV pool, output."""

    def __init__(
        self,
        options: AttentionOptions,
        layer_id: int,
        factory: WeightFactory,
        rotary: RotaryEmbedding | None,
    ) -> None:
        self._options = options
        self._rotary = rotary
        dim, kv = options.head_dim, options.num_kv_heads * options.head_dim
        q = options.num_heads * dim
        self._qkv = MergedLinear(
            options.hidden_size,
            [("q_proj", 2 * q if options.gated else q), ("k_proj", kv), ("v_proj", kv)],
            factory,
            options.qkv_bias,
        )
        self._out = Linear(options.out_name, q, options.hidden_size, factory, options.out_bias)
        self._norms: tuple[RMSNorm, ...] = ()
        if options.qk_norm_eps is not None:
            widths = (q, kv) if options.qk_norm_whole else (dim, dim)
            self._norms = tuple(
                RMSNorm(name, width, options.qk_norm_eps, factory, options.norm_offset)
                for name, width in zip(options.qk_norm_names, widths, strict=True)
            )
        scale = dim**-0.5 if options.scale is None else options.scale
        self._attention = PagedAttention(layer_id, scale, factory.device)

    def forward(self, x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """[tokens, hidden] to the same."""
        options, dim = self._options, self._options.head_dim
        q, k, v = self._qkv.split(self._qkv.forward(x))
        gate = None
        if options.gated:
            q, gate = q.reshape(-1, options.num_heads, 2 * dim).chunk(2, dim=-1)
        if options.qk_norm_whole:
            q, k = self._norms[0].forward(q), self._norms[1].forward(k)
        q = q.reshape(-1, options.num_heads, dim)
        k = k.reshape(-1, options.num_kv_heads, dim)
        v = v.reshape(-1, options.num_kv_heads, dim)
        if self._norms and not options.qk_norm_whole:
            q, k = self._norms[0].forward(q), self._norms[1].forward(k)
        if self._rotary is not None:
            rotary = self._rotary
            tables = batch.shared(id(rotary), lambda: rotary.cos_sin(batch.positions))
            q, k = rotary.apply(q, tables), rotary.apply(k, tables)
        out = self._attention.forward(q, k, v, batch)
        if gate is not None:
            out = out.mul_(torch.sigmoid(gate))
        return self._out.forward(out.flatten(1))

    def targets(self, prefix: str) -> Targets:
        """Where the checkpoint's tensors go."""
        found = {**self._qkv.targets(prefix), **self._out.targets(prefix)}
        for norm in self._norms:
            found.update(norm.targets(prefix))
        return found

    def finish_loading(self) -> None:
        """After all weights are in."""
        for norm in self._norms:
            norm.finish_loading()
