"""Gated delta net layer (arXiv:2412.06464): convolution, gates, delta rule, gated norm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from sglang.srt.kernels.reference.gated_delta_step import GatedDeltaWeights
from sglang.srt.kernels.registry import get_op
from sglang.srt.layers.linear import Linear, MergedLinear, Targets, WeightFactory

if TYPE_CHECKING:
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch


class GatedDeltaNet:
    """A linear-attention layer of Qwen3.5; `models/configs/qwen3_5.py` says what it remembers."""

    def __init__(self, config: dict[str, Any], layer_id: int, factory: WeightFactory) -> None:
        self._layer_id = layer_id
        key_heads, value_heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
        key_dim, value_dim = config["linear_key_head_dim"], config["linear_value_head_dim"]
        keys, values = key_heads * key_dim, value_heads * value_dim
        hidden = config["hidden_size"]
        # In the order of GatedDeltaWeights.part_sizes.
        self._in_proj = MergedLinear(
            hidden,
            [
                ("in_proj_qkv", 2 * keys + values),
                ("in_proj_z", values),
                ("in_proj_b", value_heads),
                ("in_proj_a", value_heads),
            ],
            factory,
        )

        # Small and sensitive weights are fp32 whatever the stage computes in.
        def small(*shape: int) -> torch.Tensor:
            return factory.empty(*shape, dtype=torch.float32)

        self._conv_weight = small(2 * keys + values, 1, config["linear_conv_kernel_dim"])
        self._a_log = small(value_heads)
        self._taps = self._conv_weight
        self._weights = GatedDeltaWeights(
            conv=self._conv_weight.squeeze(1),
            decay_rate=small(value_heads),
            dt_bias=small(value_heads),
            norm=small(value_dim),
            eps=config["rms_norm_eps"],
            key_heads=key_heads,
            value_heads=value_heads,
            key_dim=key_dim,
            value_dim=value_dim,
        )
        self._out_proj = Linear("out_proj", values, hidden, factory)
        self._conv = get_op("causal_conv_prefill", factory.device)
        self._recur = get_op("gated_delta_prefill", factory.device)
        self._norm = get_op("gated_rms_norm", factory.device)
        self._step = get_op("gated_delta_step", factory.device)

    def forward(self, x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """[tokens, hidden] to the same; the states of the batch's rows move on."""
        projected = self._in_proj.forward(x)
        cut = batch.num_decode_rows
        parts = []
        if cut:
            pool = batch.mamba_pool
            parts.append(
                self._step(
                    projected[:cut],
                    self._weights,
                    pool.conv_state(self._layer_id),
                    pool.temporal_state(self._layer_id),
                    batch.decode_states,
                )
            )
        if batch.num_tokens > cut:
            parts.append(self._prefill(projected[cut:], batch))
        out = parts[0] if len(parts) == 1 else torch.cat(parts)
        return self._out_proj.forward(out.flatten(1))

    def targets(self, prefix: str) -> Targets:
        """Where the checkpoint's tensors go."""
        return {
            **self._in_proj.targets(prefix),
            **self._out_proj.targets(prefix),
            f"{prefix}conv1d.weight": self._conv_weight,
            f"{prefix}A_log": self._a_log,
            f"{prefix}dt_bias": self._weights.dt_bias,
            f"{prefix}norm.weight": self._weights.norm,
        }

    def finish_loading(self) -> None:
        """Put weights in the form that the kernels read, once all are in."""
        # [channels, kernel] over memory in which each tap is contiguous, for long prompts.
        self._taps = self._conv_weight.squeeze(1).t().contiguous().t()
        torch.neg(self._a_log.exp(), out=self._weights.decay_rate)

    def _prefill(self, projected: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        weights, pool, layout = self._weights, batch.mamba_pool, batch.prefill_layout
        channels = weights.num_channels
        z, b, a = projected[:, channels:].split(weights.part_sizes[3:], dim=-1)
        conv_states = pool.conv_state(self._layer_id)
        mixed = self._conv(projected[:, :channels], self._taps, conv_states, layout)
        g, beta = weights.gates(b, a)
        states = pool.temporal_state(self._layer_id)
        out = self._recur(*weights.heads(mixed), g, beta, states, layout).to(projected.dtype)
        gate = z.reshape(-1, weights.value_heads, weights.value_dim)
        normed: torch.Tensor = self._norm(out, gate, weights.norm, weights.eps)
        return normed
