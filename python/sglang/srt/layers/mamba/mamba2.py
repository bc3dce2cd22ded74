"""Mamba-2 layer (arXiv:2405.21060): convolution, state-space duality, gated norm."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from sglang.srt.kernels.registry import get_op
from sglang.srt.layers.linear import Linear, Targets, WeightFactory

if TYPE_CHECKING:
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch


@dataclass(frozen=True)
class OutputNorm:
    """Norm on the output: in so many groups, before the gate or after it."""

    eps: float
    groups: int = 1
    before_gate: bool = False


@dataclass(frozen=True)
class Mamba2Shape:
    """Shape of a layer, and what a family does besides.

    dt_limit: bounds of step sizes. norm: None where the gate alone is applied. in_scales: factors
    of the projected gate, x, B, C and step sizes (muP, arXiv:2203.03466), the input's included.
    """

    hidden_size: int
    num_heads: int
    head_dim: int
    num_groups: int
    state_size: int
    kernel: int
    conv_bias: bool = True
    proj_bias: bool = False
    dt_limit: tuple[float, float] = (0.0, math.inf)
    norm: OutputNorm | None = None
    in_scales: tuple[float, float, float, float, float] | None = None

    @property
    def channels(self) -> int:
        """Width inside the layer."""
        return self.num_heads * self.head_dim

    @property
    def conv_parts(self) -> list[int]:
        """Widths of x, B and C, which pass the convolution."""
        return [self.channels, self.num_groups * self.state_size, self.num_groups * self.state_size]


class Mamba2Mixer:
    """out(norm(ssd(silu(conv(x, B, C)), dt), gate)), all being projections of the input.

    Its memory is a `MambaSpec` of sum(conv_parts) convolution channels and a state of shape
    [num_heads, head_dim, state_size].
    """

    def __init__(self, shape: Mamba2Shape, layer_id: int, factory: WeightFactory) -> None:
        self._shape = shape
        self._layer_id = layer_id
        conv = sum(shape.conv_parts)
        self._sizes = [shape.channels, conv, shape.num_heads]
        self._in_proj = Linear(
            "in_proj", shape.hidden_size, sum(self._sizes), factory, shape.proj_bias
        )
        self._out_proj = Linear(
            "out_proj", shape.channels, shape.hidden_size, factory, shape.proj_bias
        )

        def sensitive(*size: int) -> torch.Tensor:
            return factory.empty(*size, dtype=torch.float32)

        self._conv_weight = sensitive(conv, 1, shape.kernel)
        self._conv_bias = sensitive(conv) if shape.conv_bias else None
        self._a_log, self._skip = sensitive(shape.num_heads), sensitive(shape.num_heads)
        self._dt_bias = sensitive(shape.num_heads)
        self._norm_weight = sensitive(shape.channels) if shape.norm is not None else None
        self._taps, self._rate = self._conv_weight, self._a_log
        self._in_scale: torch.Tensor | None = None
        if shape.in_scales is not None:
            widths = [shape.channels, *shape.conv_parts, shape.num_heads]
            scales = zip(shape.in_scales, widths, strict=True)
            self._in_scale = torch.cat([torch.full((n,), value) for value, n in scales])
            self._in_scale = self._in_scale.to(factory.device)
        self._norm = get_op("grouped_gated_rms_norm", factory.device)
        self._ops = {
            name: get_op(name, factory.device)
            for name in ("causal_conv_prefill", "causal_conv_decode", "ssd_prefill", "ssd_decode")
        }

    def forward(self, x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """[tokens, hidden] to the same; the states of the batch's rows move on."""
        projected = self._in_proj.forward(x)
        if self._in_scale is not None:
            projected = (projected * self._in_scale).to(x.dtype)
        gate, mixed, dt = projected.split(self._sizes, dim=-1)
        steps = F.softplus(dt.float() + self._dt_bias)
        if self._shape.dt_limit != (0.0, math.inf):
            steps = steps.clamp(*self._shape.dt_limit)
        cut, parts = batch.num_decode_rows, []
        if cut:
            parts.append(self._rows("decode", mixed[:cut], steps[:cut], batch.decode_states, batch))
        if batch.num_tokens > cut:
            layout = batch.prefill_layout
            parts.append(self._rows("prefill", mixed[cut:], steps[cut:], layout, batch))
        out = (parts[0] if len(parts) == 1 else torch.cat(parts)).flatten(1)
        return self._out_proj.forward(self._gated(out, gate).to(x.dtype))

    def targets(self, prefix: str) -> Targets:
        """Where the checkpoint's tensors go."""
        found = {
            **self._in_proj.targets(prefix),
            **self._out_proj.targets(prefix),
            f"{prefix}conv1d.weight": self._conv_weight,
            f"{prefix}A_log": self._a_log,
            f"{prefix}D": self._skip,
            f"{prefix}dt_bias": self._dt_bias,
        }
        if self._conv_bias is not None:
            found[f"{prefix}conv1d.bias"] = self._conv_bias
        if self._norm_weight is not None:
            found[f"{prefix}norm.weight"] = self._norm_weight
        return found

    def finish_loading(self) -> None:
        """Put weights in the form that the kernels read, once all are in."""
        # [channels, kernel] over memory in which each tap is contiguous.
        self._taps = self._conv_weight.squeeze(1).t().contiguous().t()
        self._rate = -self._a_log.exp()

    def _gated(self, out: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        norm = self._shape.norm
        if norm is None:
            return out * F.silu(gate.float())
        result: torch.Tensor = self._norm(
            out, gate, self._norm_weight, norm.eps, norm.groups, norm.before_gate
        )
        return result

    def _rows(
        self,
        kind: str,
        mixed: torch.Tensor,
        steps: torch.Tensor,
        where: object,
        batch: ForwardBatch,
    ) -> torch.Tensor:
        """Decode rows or prompt chunks: [tokens, heads, head_dim] in fp32, before the gate."""
        shape, pool = self._shape, batch.mamba_pool
        conv_states = pool.conv_state(self._layer_id)
        conv = self._ops[f"causal_conv_{kind}"]
        mixed = conv(mixed, self._taps, conv_states, where, self._conv_bias)
        x, b, c = mixed.split(shape.conv_parts, dim=-1)
        x = x.reshape(-1, shape.num_heads, shape.head_dim)
        b, c = (y.reshape(-1, shape.num_groups, shape.state_size) for y in (b, c))
        states = pool.temporal_state(self._layer_id)
        out: torch.Tensor = self._ops[f"ssd_{kind}"](
            x, steps, self._rate, b, c, self._skip, states, where
        )
        return out
