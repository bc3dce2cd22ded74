"""Gated delta net layer (arXiv:2412.06464): convolution, gates, delta rule, gated norm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from sglang.srt.kernels.reference.gated_delta_step import GatedDeltaWeights
from sglang.srt.kernels.registry import get_op
from sglang.srt.layers.linear import Linear, MergedLinear, Targets, WeightFactory

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
        self._conv_parts = _named(options.conv_names, separate)

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
            eps=config["rms_norm_eps"] if options.norm_eps is None else options.norm_eps,
            key_heads=key_heads,
            value_heads=value_heads,
            key_dim=key_dim,
            value_dim=value_dim,
            max_strength=options.max_strength,
        )
        self._out_proj = Linear(options.out_name, values, hidden, factory)
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
        convs = self._conv_weight.split([size for _, size in self._conv_parts])
        return {
            **self._in_proj.targets(prefix),
            **self._out_proj.targets(prefix),
            **{
                f"{prefix}{name}.weight": conv
                for (name, _), conv in zip(self._conv_parts, convs, strict=True)
            },
            f"{prefix}A_log": self._a_log,
            f"{prefix}dt_bias": self._weights.dt_bias,
            f"{prefix}{self._options.norm_name}.weight": self._weights.norm,
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


def _named(names: tuple[str, ...], sizes: list[int]) -> list[tuple[str, int]]:
    """Names with their sizes; one name has all of them together."""
    return list(zip(names, sizes if len(names) > 1 else [sum(sizes)], strict=True))
