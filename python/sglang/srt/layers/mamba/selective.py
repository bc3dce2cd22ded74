"""Mamba's selective state space layer (arXiv:2312.00752), with Jamba's norms (arXiv:2403.19887)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from sglang.srt.kernels.registry import get_op
from sglang.srt.layers.layernorm import RMSNorm
from sglang.srt.layers.linear import Linear, Targets, WeightFactory

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

        self._conv_weight = sensitive(channels, 1, shape.kernel)
        self._conv_bias = sensitive(channels) if shape.conv_bias else None
        self._dt_bias, self._skip = sensitive(channels), sensitive(channels)
        self._a_log = sensitive(channels, shape.state_size)
        self._taps, self._rate = self._conv_weight, self._a_log
        self._ops = {
            name: get_op(name, factory.device)
            for name in (
                "causal_conv_prefill",
                "causal_conv_decode",
                "selective_scan_prefill",
                "selective_scan_decode",
            )
        }

    def forward(self, x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """[tokens, hidden] to the same; the states of the batch's rows move on."""
        inputs, gate = self._in_proj.forward(x).chunk(2, dim=-1)
        cut, parts = batch.num_decode_rows, []
        if cut:
            parts.append(self._rows("decode", inputs[:cut], batch.decode_states, batch))
        if batch.num_tokens > cut:
            parts.append(self._rows("prefill", inputs[cut:], batch.prefill_layout, batch))
        out = parts[0] if len(parts) == 1 else torch.cat(parts)
        return self._out_proj.forward(out.mul_(F.silu(gate.float())).to(x.dtype))

    def targets(self, prefix: str) -> Targets:
        """Where the checkpoint's tensors go."""
        found = {
            f"{prefix}conv1d.weight": self._conv_weight,
            f"{prefix}dt_proj.bias": self._dt_bias,
            f"{prefix}A_log": self._a_log,
            f"{prefix}D": self._skip,
        }
        if self._conv_bias is not None:
            found[f"{prefix}conv1d.bias"] = self._conv_bias
        for projection in (self._in_proj, self._x_proj, self._dt_proj, self._out_proj):
            found.update(projection.targets(prefix))
        for norm in self._norms:
            found.update(norm.targets(prefix))
        return found

    def finish_loading(self) -> None:
        """Put weights in the form that the kernels read, once all are in."""
        # [channels, kernel] over memory in which each tap is contiguous.
        self._taps = self._conv_weight.squeeze(1).t().contiguous().t()
        self._rate = -self._a_log.exp()
        for norm in self._norms:
            norm.finish_loading()

    def _rows(
        self, kind: str, inputs: torch.Tensor, where: object, batch: ForwardBatch
    ) -> torch.Tensor:
        """Decode rows or prompt chunks: [tokens, channels] in fp32, before the gate."""
        pool = batch.mamba_pool
        conv, scan = self._ops[f"causal_conv_{kind}"], self._ops[f"selective_scan_{kind}"]
        mixed = conv(inputs, self._taps, pool.conv_state(self._layer_id), where, self._conv_bias)
        dt, b, c = self._x_proj.forward(mixed).split(self._sizes, dim=-1)
        if self._norms:
            dt, b, c = (norm.forward(y) for norm, y in zip(self._norms, (dt, b, c), strict=True))
        steps = F.softplus(self._dt_proj.forward(dt).float() + self._dt_bias)
        states = pool.temporal_state(self._layer_id)
        out: torch.Tensor = scan(mixed, steps, self._rate, b, c, states, where)
        return out.addcmul_(mixed.float(), self._skip)
