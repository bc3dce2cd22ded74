"""Gated delta net layer (arXiv:2412.06464): convolution, gates, delta rule, gated norm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from sglang.srt.kernels.registry import get_op
from sglang.srt.layers.linear import Linear, MergedLinear, Targets, WeightFactory

if TYPE_CHECKING:
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch


class GatedDeltaNet:
    """A linear-attention layer of Qwen3.5; `models/configs/qwen3_5.py` says what it remembers."""

    def __init__(self, config: dict[str, Any], layer_id: int, factory: WeightFactory) -> None:
        self._layer_id = layer_id
        self._eps = config["rms_norm_eps"]
        self._key_heads = config["linear_num_key_heads"]
        self._value_heads = config["linear_num_value_heads"]
        self._key_dim = config["linear_key_head_dim"]
        self._value_dim = config["linear_value_head_dim"]
        keys, values = self._key_heads * self._key_dim, self._value_heads * self._value_dim
        hidden = config["hidden_size"]
        self._in_proj = MergedLinear(
            hidden,
            [
                ("in_proj_qkv", 2 * keys + values),
                ("in_proj_z", values),
                ("in_proj_b", self._value_heads),
                ("in_proj_a", self._value_heads),
            ],
            factory,
        )
        self._qkv_sizes = [keys, keys, values]
        # Small and sensitive weights are fp32 whatever the stage computes in.
        self._conv_weight = factory.empty(
            2 * keys + values, 1, config["linear_conv_kernel_dim"], dtype=torch.float32
        )
        self._a_log = factory.empty(self._value_heads, dtype=torch.float32)
        self._dt_bias = factory.empty(self._value_heads, dtype=torch.float32)
        self._norm_weight = factory.empty(self._value_dim, dtype=torch.float32)
        self._taps = self._conv_weight
        self._decay_rate = self._a_log
        self._out_proj = Linear("out_proj", values, hidden, factory)
        self._ops = {
            name: get_op(name, factory.device)
            for name in (
                "causal_conv_prefill",
                "causal_conv_decode",
                "gated_delta_prefill",
                "gated_delta_decode",
                "gated_rms_norm",
            )
        }

    def forward(self, x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """[tokens, hidden] to the same; the states of the batch's rows move on."""
        qkv, z, b, a = self._in_proj.split(self._in_proj.forward(x))
        g = F.softplus(a.float() + self._dt_bias).mul_(self._decay_rate)
        beta = b.float().sigmoid_()
        cut = batch.num_decode_rows
        parts = []
        if cut:
            parts.append(self._decode(qkv[:cut], g[:cut], beta[:cut], batch))
        if batch.num_tokens > cut:
            parts.append(self._prefill(qkv[cut:], g[cut:], beta[cut:], batch))
        out = (parts[0] if len(parts) == 1 else torch.cat(parts)).to(x.dtype)
        gate = z.reshape(-1, self._value_heads, self._value_dim)
        out = self._ops["gated_rms_norm"](out, gate, self._norm_weight, self._eps)
        return self._out_proj.forward(out.flatten(1))

    def targets(self, prefix: str) -> Targets:
        """Where the checkpoint's tensors go."""
        return {
            **self._in_proj.targets(prefix),
            **self._out_proj.targets(prefix),
            f"{prefix}conv1d.weight": self._conv_weight,
            f"{prefix}A_log": self._a_log,
            f"{prefix}dt_bias": self._dt_bias,
            f"{prefix}norm.weight": self._norm_weight,
        }

    def finish_loading(self) -> None:
        """Put weights in the form that the kernels read, once all are in."""
        # [channels, kernel] over memory in which each tap is contiguous.
        self._taps = self._conv_weight.squeeze(1).t().contiguous().t()
        self._decay_rate = -self._a_log.exp()

    def _prefill(
        self, qkv: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, batch: ForwardBatch
    ) -> torch.Tensor:
        pool, layout = batch.mamba_pool, batch.prefill_layout
        states = pool.conv_state(self._layer_id)
        mixed = self._ops["causal_conv_prefill"](qkv, self._taps, states, layout)
        out: torch.Tensor = self._ops["gated_delta_prefill"](
            *self._heads(mixed), g, beta, pool.temporal_state(self._layer_id), layout
        )
        return out

    def _decode(
        self, qkv: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, batch: ForwardBatch
    ) -> torch.Tensor:
        pool, slots = batch.mamba_pool, batch.decode_states
        states = pool.conv_state(self._layer_id)
        mixed = self._ops["causal_conv_decode"](qkv, self._taps, states, slots)
        out: torch.Tensor = self._ops["gated_delta_decode"](
            *self._heads(mixed), g, beta, pool.temporal_state(self._layer_id), slots
        )
        return out

    def _heads(self, mixed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        q, k, v = mixed.split(self._qkv_sizes, dim=-1)
        return (
            q.reshape(-1, self._key_heads, self._key_dim),
            k.reshape(-1, self._key_heads, self._key_dim),
            v.reshape(-1, self._value_heads, self._value_dim),
        )
