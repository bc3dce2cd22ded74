"""Mamba-2 layer (arXiv:2405.21060) with the variations of the families served."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from sglang.srt.kernels.registry import get_op
from sglang.srt.layers.linear import Linear, Targets, WeightFactory
from sglang.srt.layers.mamba.causal_conv import CausalConv

if TYPE_CHECKING:
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch


@dataclass(frozen=True)
class Mamba2Options:
    """Shape of a Mamba-2 layer, and what a family does besides.

    num_groups: heads share B and C by groups. dt_limit: bounds of step sizes. norm_eps: of the norm
    on the output, over `norm_groups` groups of values, after the gate if `gate_first`; None: the
    gate alone. multipliers: of the gate, x, B, C and step sizes behind the input projection (muP).
    """

    hidden_size: int
    num_heads: int
    head_dim: int
    num_groups: int
    state_size: int
    kernel: int
    norm_eps: float | None
    norm_groups: int = 1
    gate_first: bool = True
    conv_bias: bool = True
    in_bias: bool = False
    out_bias: bool = False
    dt_limit: tuple[float, float] = (0.0, float("inf"))
    multipliers: tuple[float, ...] | None = None


class Mamba2Mixer:
    """out(norm(ssd(silu(conv(x, B, C)), dt) * silu(gate))), all being parts of one projection.

    Its memory is a `MambaSpec` with a convolution over x, B and C side by side and a state of shape
    [num_heads, head_dim, state_size].
    """

    def __init__(self, options: Mamba2Options, layer_id: int, factory: WeightFactory) -> None:
        self._options = options
        self._layer_id = layer_id
        hidden, heads = options.hidden_size, options.num_heads
        channels, shared = heads * options.head_dim, options.num_groups * options.state_size
        self._parts = [channels, channels, shared, shared, heads]  # gate, x, B, C, dt
        self._in_proj = Linear("in_proj", hidden, sum(self._parts), factory, options.in_bias)
        self._out_proj = Linear("out_proj", channels, hidden, factory, options.out_bias)

        def sensitive(*size: int) -> torch.Tensor:
            return factory.empty(*size, dtype=torch.float32)

        parts = [("conv1d", channels + 2 * shared)]
        self._conv = CausalConv(parts, options.kernel, options.conv_bias, layer_id, factory)
        self._a_log, self._dt_bias, self._skip = (sensitive(heads) for _ in range(3))
        self._norm_weight = sensitive(channels) if options.norm_eps is not None else None
        self._rate = self._a_log
        self._multipliers: torch.Tensor | None = None
        if options.multipliers is not None:
            self._multipliers = torch.cat(
                [
                    torch.full((size,), value, dtype=factory.dtype, device=factory.device)
                    for size, value in zip(self._parts, options.multipliers, strict=True)
                ]
            )
        self._prefill = get_op("ssd_prefill", factory.device)
        self._decode = get_op("ssd_decode", factory.device)
        self._norm = get_op("grouped_rms_norm", factory.device)

    def forward(self, x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """[tokens, hidden] to the same; the states of the batch's rows move on."""
        projected = self._in_proj.forward(x)
        if self._multipliers is not None:
            projected = projected * self._multipliers
        channels, *_, heads = self._parts
        gate, mixed, dt = projected.tensor_split([channels, projected.shape[1] - heads], dim=-1)
        steps = F.softplus(dt.float() + self._dt_bias)
        if self._options.dt_limit != (0.0, float("inf")):
            steps.clamp_(*self._options.dt_limit)
        states = batch.mamba_pool.temporal_state(self._layer_id)

        def decode(rows: slice) -> torch.Tensor:
            inputs = self._inputs(self._conv.decode(mixed[rows], batch), steps[rows])
            out: torch.Tensor = self._decode(*inputs, states, batch.decode_states)
            return out

        def prefill(rows: slice) -> torch.Tensor:
            inputs = self._inputs(self._conv.prefill(mixed[rows], batch), steps[rows])
            out: torch.Tensor = self._prefill(*inputs, states, batch.prefill_layout)
            return out

        out = batch.by_kind(decode, prefill).flatten(1)
        return self._out_proj.forward(self._gated(out, gate))

    def targets(self, prefix: str) -> Targets:
        """Where the checkpoint's tensors go."""
        found = {
            **self._in_proj.targets(prefix),
            **self._out_proj.targets(prefix),
            **self._conv.targets(prefix),
            f"{prefix}A_log": self._a_log,
            f"{prefix}dt_bias": self._dt_bias,
            f"{prefix}D": self._skip,
        }
        if self._norm_weight is not None:
            found[f"{prefix}norm.weight"] = self._norm_weight
        return found

    def finish_loading(self) -> None:
        """Put weights in the form that the kernels read, once all are in."""
        self._conv.finish_loading()
        self._rate = -self._a_log.exp()

    def _inputs(self, mixed: torch.Tensor, steps: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """What the recurrence reads: x [tokens, heads, head_dim], steps, rates, B, C, skips."""
        options = self._options
        x, b, c = mixed.split(self._parts[1:4], dim=-1)
        x = x.reshape(-1, options.num_heads, options.head_dim)
        b, c = (y.reshape(-1, options.num_groups, options.state_size) for y in (b, c))
        return x, steps, self._rate, b, c, self._skip

    def _gated(self, out: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        options = self._options
        if self._norm_weight is None:
            return out.mul_(F.silu(gate.float())).to(gate.dtype)
        normed: torch.Tensor = self._norm(
            out, gate, self._norm_weight, options.norm_eps, options.norm_groups, options.gate_first
        )
        return normed
