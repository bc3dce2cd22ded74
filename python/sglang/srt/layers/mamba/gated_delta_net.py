"""Gated delta net layer (arXiv:2412.06464): convolution, gates, delta rule, gated norm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from sglang.srt.kernels.reference.gated_delta_step import GatedDeltaWeights
from sglang.srt.kernels.registry import get_op
from sglang.srt.layers.linear import Linear, MergedLinear, Targets, WeightFactory
from sglang.srt.layers.mamba.causal_conv import CausalConv

if TYPE_CHECKING:
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch


@dataclass(frozen=True)
class DeltaNetOptions:
    """What families do differently; the defaults are Qwen3.5's.

    qkv_names: of one projection to queries, keys and values, or of three; conv_names: of the
    convolution over them, one or three. gate_name (z), strength_name (b), decay_name (a),
    norm_name and out_name: in checkpoints. norm_eps: of the output norm, `rms_norm_eps` if None.
    max_strength: see `GatedDeltaWeights`.
    """

    qkv_names: tuple[str, ...] = ("in_proj_qkv",)
    conv_names: tuple[str, ...] = ("conv1d",)
    gate_name: str = "in_proj_z"
    strength_name: str = "in_proj_b"
    decay_name: str = "in_proj_a"
    norm_name: str = "norm"
    out_name: str = "out_proj"
    norm_eps: float | None = None
    max_strength: float = 1.0


class GatedDeltaNet:
    """A linear-attention layer; `models/configs/qwen3_5.py` says what it remembers."""

    def __init__(
        self,
        config: dict[str, Any],
        layer_id: int,
        factory: WeightFactory,
        options: DeltaNetOptions | None = None,
    ) -> None:
        self._layer_id = layer_id
        self._options = options = options or DeltaNetOptions()
        key_heads, value_heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
        key_dim, value_dim = config["linear_key_head_dim"], config["linear_value_head_dim"]
        keys, values = key_heads * key_dim, value_heads * value_dim
        hidden = config["hidden_size"]
        separate = [keys, keys, values]
        # In the order of GatedDeltaWeights.part_sizes.
        self._in_proj = MergedLinear(
            hidden,
            [
                *_named(options.qkv_names, separate),
                (options.gate_name, values),
                (options.strength_name, value_heads),
                (options.decay_name, value_heads),
            ],
            factory,
        )
        kernel, parts = config["linear_conv_kernel_dim"], _named(options.conv_names, separate)
        self._conv = CausalConv(parts, kernel, False, layer_id, factory)

        # Small and sensitive weights are fp32 whatever the stage computes in.
        def small(*shape: int) -> torch.Tensor:
            return factory.empty(*shape, dtype=torch.float32)

        self._a_log = small(value_heads)
        self._weights = GatedDeltaWeights(
            conv=self._conv.weight,
            decay_rate=small(value_heads),
            dt_bias=small(value_heads),
            norm=small(value_dim),
            eps=config["rms_norm_eps"] if options.norm_eps is None else options.norm_eps,
            key_heads=key_heads,
            value_heads=value_heads,
            key_dim=key_dim,
            value_dim=value_dim,
            max_strength=options.max_strength,
        )
        self._out_proj = Linear(options.out_name, values, hidden, factory)
        self._recur = get_op("gated_delta_prefill", factory.device)
        self._norm = get_op("gated_rms_norm", factory.device)
        self._step = get_op("gated_delta_step", factory.device)

    def forward(self, x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """[tokens, hidden] to the same; the states of the batch's rows move on."""
        projected = self._in_proj.forward(x)
        out = batch.by_kind(
            lambda rows: self._decode(projected[rows], batch),
            lambda rows: self._prefill(projected[rows], batch),
        )
        return self._out_proj.forward(out.flatten(1))

    def targets(self, prefix: str) -> Targets:
        """Where the checkpoint's tensors go."""
        return {
            **self._in_proj.targets(prefix),
            **self._out_proj.targets(prefix),
            **self._conv.targets(prefix),
            f"{prefix}A_log": self._a_log,
            f"{prefix}dt_bias": self._weights.dt_bias,
            f"{prefix}{self._options.norm_name}.weight": self._weights.norm,
        }

    def finish_loading(self) -> None:
        """Put weights in the form that the kernels read, once all are in."""
        self._conv.finish_loading()
        torch.neg(self._a_log.exp(), out=self._weights.decay_rate)

    def _decode(self, projected: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        pool = batch.mamba_pool
        out: torch.Tensor = self._step(
            projected,
            self._weights,
            pool.conv_state(self._layer_id),
            pool.temporal_state(self._layer_id),
            batch.decode_states,
        )
        return out

    def _prefill(self, projected: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        weights = self._weights
        channels = weights.num_channels
        z, b, a = projected[:, channels:].split(weights.part_sizes[3:], dim=-1)
        mixed = self._conv.prefill(projected[:, :channels], batch)
        g, beta = weights.gates(b, a)
        states = batch.mamba_pool.temporal_state(self._layer_id)
        out = self._recur(*weights.heads(mixed), g, beta, states, batch.prefill_layout)
        out = out.to(projected.dtype)
        gate = z.reshape(-1, weights.value_heads, weights.value_dim)
        normed: torch.Tensor = self._norm(out, gate, weights.norm, weights.eps)
        return normed


def _named(names: tuple[str, ...], sizes: list[int]) -> list[tuple[str, int]]:
    """Names with their sizes; one name has all of them together."""
    return list(zip(names, sizes if len(names) > 1 else [sum(sizes)], strict=True))
