"""The op table's entries for a CPU. What a kernel does not cover goes to the reference."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from sglang.srt.kernels.batch_layout import DecodeLayout
from sglang.srt.kernels.cpu.native import library
from sglang.srt.kernels.reference import attention, gated_delta_step, moe, norm, pointwise
from sglang.srt.kernels.reference.gated_delta_step import GatedDeltaWeights

# From this many rows on the blocked matrix product of torch is faster than dot products.
MAX_DOT_ROWS = 32
_MAX_DIM = 512  # of a head, in attention.cpp and gated_delta.cpp
_MAX_GROUP = 64


def _is_plain(*tensors: torch.Tensor) -> bool:
    """fp32 with its last dimension contiguous."""
    return all(x.dtype == torch.float32 and x.stride(-1) == 1 for x in tensors)


@dataclass(frozen=True)
class CpuOps:
    """Kernels of a loaded library."""

    lib: ctypes.CDLL

    @cached_property
    def _linear_of(self) -> dict[torch.dtype, Callable[..., None]]:
        """The matrix product for each dtype of weights."""
        return {torch.float32: self.lib.sg_linear, torch.bfloat16: self.lib.sg_linear_bf16}

    def linear(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """`reference.pointwise.linear` for few rows without copies."""
        function = self._linear_of.get(weight.dtype)
        if (
            function is None
            or x.dim() != 2
            or not 0 < x.shape[0] <= MAX_DOT_ROWS
            or not _is_plain(x)
            or not weight.is_contiguous()
        ):
            return pointwise.linear(x, weight, bias)
        (m, k), n = x.shape, weight.shape[0]
        y = x.new_empty(m, n)
        function(
            x.data_ptr(), weight.data_ptr(), None if bias is None else bias.data_ptr(),
            y.data_ptr(), m, n, k, x.stride(0), n,
        )  # fmt: skip
        return y

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """`reference.norm.rms_norm` in one pass."""
        if not 2 <= x.dim() <= 3 or not _is_plain(x, weight):
            return norm.rms_norm(x, weight, eps)
        y = x.new_empty(x.shape)
        inner = x.shape[1] if x.dim() == 3 else 1
        stride_inner = x.stride(1) if x.dim() == 3 else 0
        self.lib.sg_rms_norm(
            x.data_ptr(), weight.data_ptr(), y.data_ptr(), x.shape[0], inner, x.shape[-1],
            x.stride(0), stride_inner, eps,
        )  # fmt: skip
        return y

    def gated_rms_norm(
        self, x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """`reference.norm.gated_rms_norm` in one pass."""
        if x.dim() != 3 or not _is_plain(x, gate, weight) or not x.is_contiguous():
            return norm.gated_rms_norm(x, gate, weight, eps)
        y = torch.empty_like(x)
        self.lib.sg_gated_rms_norm(
            x.data_ptr(), gate.data_ptr(), weight.data_ptr(), y.data_ptr(), *x.shape,
            gate.stride(0), gate.stride(1), eps,
        )  # fmt: skip
        return y

    def silu_and_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """`reference.pointwise.silu_and_mul` in one pass."""
        if gate_up.dim() != 2 or not _is_plain(gate_up):
            return pointwise.silu_and_mul(gate_up)
        rows, n = gate_up.shape[0], gate_up.shape[1] // 2
        y = gate_up.new_empty(rows, n)
        self.lib.sg_silu_and_mul(gate_up.data_ptr(), y.data_ptr(), rows, n, gate_up.stride(0))
        return y

    def rotary(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """`reference.pointwise.rotary` in one pass."""
        if not _is_plain(x) or not (cos.is_contiguous() and sin.is_contiguous()):
            return pointwise.rotary(x, cos, sin)
        y = x.new_empty(x.shape)
        self.lib.sg_rotary(
            x.data_ptr(), cos.data_ptr(), sin.data_ptr(), y.data_ptr(), *x.shape, cos.shape[1],
            x.stride(0), x.stride(1),
        )  # fmt: skip
        return y

    def attention_decode(
        self,
        q: torch.Tensor,
        kv: tuple[torch.Tensor, torch.Tensor],
        layout: DecodeLayout,
        scale: float,
    ) -> torch.Tensor:
        """`reference.attention.attention_decode` that reads keys and values where they lie."""
        keys, values = kv
        dim, v_dim, kv_heads = q.shape[2], values.shape[2], keys.shape[1]
        if (
            not _is_plain(q, keys, values)
            or dim % 8
            or v_dim % 8
            or max(dim, v_dim) > _MAX_DIM
            or q.shape[1] // kv_heads > _MAX_GROUP
        ):
            return attention.attention_decode(q, kv, layout, scale)
        q = q.contiguous()
        y = q.new_empty((*q.shape[:2], v_dim))
        rows = layout.host_rows
        self.lib.sg_attention_decode(
            q.data_ptr(), keys.data_ptr(), values.data_ptr(), layout.page_table.data_ptr(),
            rows[0].data_ptr(), rows[1].data_ptr(), rows[2].data_ptr(), y.data_ptr(),
            q.shape[0], q.shape[1], kv_heads, dim, v_dim, layout.page_table.stride(0), scale,
        )  # fmt: skip
        return y

    def gated_delta_step(
        self,
        x: torch.Tensor,
        weights: GatedDeltaWeights,
        conv_states: torch.Tensor,
        states: torch.Tensor,
        slots: torch.Tensor,
    ) -> torch.Tensor:
        """`reference.gated_delta_step` as one pass over each head's state."""
        if (
            not _is_plain(x, conv_states, states)
            or weights.max_strength != 1.0
            or weights.key_dim % 8
            or weights.value_dim % 8
            or max(weights.key_dim, weights.value_dim) > _MAX_DIM
        ):
            return gated_delta_step.gated_delta_step(x, weights, conv_states, states, slots)
        y = x.new_empty(x.shape[0], weights.value_heads, weights.value_dim)
        self.lib.sg_gated_delta_step(
            x.data_ptr(), weights.conv.data_ptr(), conv_states.data_ptr(), states.data_ptr(),
            slots.data_ptr(), weights.decay_rate.data_ptr(), weights.dt_bias.data_ptr(),
            weights.norm.data_ptr(), y.data_ptr(), x.shape[0], x.stride(0), weights.key_heads,
            weights.value_heads, weights.key_dim, weights.value_dim, weights.conv.shape[1],
            weights.eps,
        )  # fmt: skip
        return y

    def moe_experts(
        self,
        x: torch.Tensor,
        w_in: torch.Tensor,
        w_out: torch.Tensor,
        expert_ids: torch.Tensor,
        expert_weights: torch.Tensor,
        activation: str,
    ) -> torch.Tensor:
        """`reference.moe.moe_experts` with the products above: experts have few rows each."""
        act = {**moe.ACTIVATIONS, "silu_and_mul": self.silu_and_mul}[activation]
        return moe.run_experts(x, w_in, w_out, expert_ids, expert_weights, (self.linear, act))


def cpu_ops() -> dict[str, Callable[..., Any]]:
    """The kernels by name. Raises NativeMissing when there are none."""
    ops = CpuOps(library())
    names = ("linear", "rms_norm", "gated_rms_norm", "silu_and_mul", "rotary", "attention_decode",
             "gated_delta_step", "moe_experts")  # fmt: skip
    return {name: getattr(ops, name) for name in names}
