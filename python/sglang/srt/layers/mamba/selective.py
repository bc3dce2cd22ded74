"""Mamba's selective state space layer (arXiv:2312.00752), with Jamba's norms (arXiv:2403.19887)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from sglang.srt.kernels.registry import get_op
from sglang.srt.layers.layernorm import RMSNorm
from sglang.srt.layers.linear import Linear, Targets, WeightFactory
from sglang.srt.layers.mamba.causal_conv import CausalConv

if TYPE_CHECKING:
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch


@dataclass(frozen=True)
class SelectiveShape:
    """channels: width inside the layer; state_size: values a channel remembers; dt_rank: width of
    the bottleneck that step sizes come from. norm_eps: of norms on step sizes, B and C, if any."""

    hidden_size: int
    channels: int
    state_size: int
    kernel: int
    dt_rank: int
    conv_bias: bool
    proj_bias: bool
    norm_eps: float | None


class SelectiveSSM:
    """out(scan(silu(conv(x))) * silu(z)), x and z being projections of the input.

    Its memory is a `MambaSpec` of `channels` convolution channels and a state of shape
    [channels, state_size].
    """

    def __init__(self, shape: SelectiveShape, layer_id: int, factory: WeightFactory) -> None:
        self._layer_id = layer_id
        self._sizes = [shape.dt_rank, shape.state_size, shape.state_size]
        hidden, channels = shape.hidden_size, shape.channels
        self._in_proj = Linear("in_proj", hidden, 2 * channels, factory, shape.proj_bias)
        self._x_proj = Linear("x_proj", channels, sum(self._sizes), factory)
        self._dt_proj = Linear("dt_proj", shape.dt_rank, channels, factory)
        self._out_proj = Linear("out_proj", channels, hidden, factory, shape.proj_bias)
        self._norms: tuple[RMSNorm, ...] = ()
        if shape.norm_eps is not None:
            self._norms = tuple(
                RMSNorm(f"{name}_layernorm", size, shape.norm_eps, factory)
                for name, size in zip(("dt", "b", "c"), self._sizes, strict=True)
            )

        def sensitive(*size: int) -> torch.Tensor:
            return factory.empty(*size, dtype=torch.float32)

        parts = [("conv1d", channels)]
        self._conv = CausalConv(parts, shape.kernel, shape.conv_bias, layer_id, factory)
        self._dt_bias, self._skip = sensitive(channels), sensitive(channels)
        self._a_log = sensitive(channels, shape.state_size)
        self._rate = self._a_log
        self._prefill = get_op("selective_scan_prefill", factory.device)
        self._decode = get_op("selective_scan_decode", factory.device)

    def forward(self, x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """[tokens, hidden] to the same; the states of the batch's rows move on."""
        inputs, gate = self._in_proj.forward(x).chunk(2, dim=-1)
        states = batch.mamba_pool.temporal_state(self._layer_id)

        def decode(rows: slice) -> torch.Tensor:
            mixed = self._conv.decode(inputs[rows], batch)
            out: torch.Tensor = self._decode(*self._inputs(mixed), states, batch.decode_states)
            return out.addcmul_(mixed.float(), self._skip)

        def prefill(rows: slice) -> torch.Tensor:
            mixed = self._conv.prefill(inputs[rows], batch)
            out: torch.Tensor = self._prefill(*self._inputs(mixed), states, batch.prefill_layout)
            return out.addcmul_(mixed.float(), self._skip)

        out = batch.by_kind(decode, prefill)
        return self._out_proj.forward(out.mul_(F.silu(gate.float())).to(x.dtype))

    def targets(self, prefix: str) -> Targets:
        """Where the checkpoint's tensors go."""
        found = {
            f"{prefix}dt_proj.bias": self._dt_bias,
            f"{prefix}A_log": self._a_log,
            f"{prefix}D": self._skip,
        }
        found.update(self._conv.targets(prefix))
        for projection in (self._in_proj, self._x_proj, self._dt_proj, self._out_proj):
            found.update(projection.targets(prefix))
        for norm in self._norms:
            found.update(norm.targets(prefix))
        return found

    def finish_loading(self) -> None:
        """Put weights in the form that the kernels read, once all are in."""
        self._conv.finish_loading()
        self._rate = -self._a_log.exp()
        for norm in self._norms:
            norm.finish_loading()

    def _inputs(self, mixed: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """What the scan reads: x [tokens, channels], steps, rates, B, C."""
        dt, b, c = self._x_proj.forward(mixed).split(self._sizes, dim=-1)
        if self._norms:
            dt, b, c = (norm.forward(y) for norm, y in zip(self._norms, (dt, b, c), strict=True))
        steps = F.softplus(self._dt_proj.forward(dt).float() + self._dt_bias)
        return mixed, steps, self._rate, b, c
