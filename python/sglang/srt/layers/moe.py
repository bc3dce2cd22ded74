"""Mixture-of-experts feed-forward layer (arXiv:1701.06538) with the routings of the families."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from sglang.srt.kernels.registry import get_op
from sglang.srt.layers.linear import Linear, Targets, WeightFactory

if TYPE_CHECKING:
    from sglang.srt.layers.residual import Part
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch

# Tensors that stack all experts of a layer, as `transformers` holds them in memory: ending of the
# name, and what is stacked of each expert, one below the other.
STACKED: Mapping[str, tuple[str, ...]] = {
    "experts.gate_up_proj": ("gate_proj", "up_proj"),
    "experts.up_proj": ("up_proj",),
    "experts.down_proj": ("down_proj",),
}


@dataclass(frozen=True)
class Routing:
    """How a token's experts are chosen and weighed.

    scoring: "softmax" over all experts or "sigmoid" of each. normalise: the weights of the chosen
    are divided by their sum plus `sum_eps` (softmax and normalise together are a softmax over the
    chosen). scale multiplies the weights. bias_name: a correction that is added to the scores for
    the choice alone (arXiv:2408.15664), None without. num_groups, top_groups: experts are chosen
    from the `top_groups` groups whose two best scores sum highest (arXiv:2412.19437).
    """

    num_experts: int
    top_k: int
    scoring: str = "softmax"
    normalise: bool = True
    sum_eps: float = 0.0
    scale: float = 1.0
    name: str = "gate"
    bias_name: str | None = None
    num_groups: int = 1
    top_groups: int = 1


class Router:
    """Scores experts in fp32: a choice that flips with rounding would change the layer."""

    def __init__(self, routing: Routing, hidden_size: int, factory: WeightFactory) -> None:
        self._routing = routing
        count = routing.num_experts
        self._weight = factory.empty(count, hidden_size, dtype=torch.float32)
        self._bias: torch.Tensor | None = None
        if routing.bias_name is not None:
            self._bias = factory.empty(count, dtype=torch.float32)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """x [tokens, hidden] to the chosen experts [tokens, top_k], int64, and weights in fp32."""
        routing = self._routing
        logits = F.linear(x.float(), self._weight)
        scores = logits.softmax(-1) if routing.scoring == "softmax" else logits.sigmoid()
        choice = scores if self._bias is None else scores + self._bias
        if routing.top_groups < routing.num_groups:
            choice = self._in_best_groups(choice)
        ids = choice.topk(routing.top_k, dim=-1).indices
        weights = scores.gather(1, ids)
        if routing.normalise:
            weights = weights / (weights.sum(-1, keepdim=True) + routing.sum_eps)
        return ids, weights * routing.scale

    def targets(self, prefix: str) -> Targets:
        """Where the checkpoint's tensors go."""
        found = {f"{prefix}{self._routing.name}.weight": self._weight}
        if self._bias is not None:
            found[f"{prefix}{self._routing.bias_name}"] = self._bias
        return found

    def _in_best_groups(self, choice: torch.Tensor) -> torch.Tensor:
        """The scores, those outside the best groups at minus infinity."""
        grouped = choice.view(len(choice), self._routing.num_groups, -1)
        best = grouped.topk(2, dim=-1).values.sum(-1).topk(self._routing.top_groups, -1).indices
        left_out = torch.ones_like(grouped[..., 0], dtype=torch.bool).scatter_(1, best, False)
        return grouped.masked_fill(left_out.unsqueeze(-1), float("-inf")).flatten(1)


@dataclass(frozen=True)
class ExpertShape:
    """The experts of a layer: width, activation, and what their weights are called.

    activation: "silu_and_mul" with two tensors on the input side, gate first, or "relu_squared"
    with one. latent_size: experts work on a projection to so many values instead of on the hidden
    state itself.
    """

    hidden_size: int
    width: int
    activation: str = "silu_and_mul"
    in_names: tuple[str, ...] = ("gate_proj", "up_proj")
    out_name: str = "down_proj"
    latent_size: int | None = None
    latent_names: tuple[str, str] = ("fc1_latent_proj", "fc2_latent_proj")


@dataclass(frozen=True)
class SharedExpert:
    """A feed-forward layer that all tokens pass, and its name in checkpoints.

    gate_name: a projection to one value whose sigmoid multiplies its output.
    """

    part: Part
    name: str = "shared_expert"
    gate_name: str | None = None


class MoE:
    """Each token through its `top_k` experts, and through the shared one if there is one."""

    def __init__(
        self,
        routing: Routing,
        shape: ExpertShape,
        factory: WeightFactory,
        shared: SharedExpert | None = None,
    ) -> None:
        self._shape = shape
        self._shared = shared
        self._router = Router(routing, shape.hidden_size, factory)
        inner, hidden = len(shape.in_names) * shape.width, shape.latent_size or shape.hidden_size
        self._w_in = factory.matrix(routing.num_experts, inner, hidden)
        self._w_out = factory.matrix(routing.num_experts, hidden, shape.width)
        self._latent: tuple[Linear, ...] = ()
        if shape.latent_size is not None:
            down, up = shape.latent_names
            self._latent = (
                Linear(down, shape.hidden_size, hidden, factory),
                Linear(up, hidden, shape.hidden_size, factory),
            )
        self._gate: Linear | None = None
        if shared is not None and shared.gate_name is not None:
            self._gate = Linear(shared.gate_name, shape.hidden_size, 1, factory)
        self._experts = get_op("moe_experts", factory.device)

    def forward(self, x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """[tokens, hidden] to the same."""
        ids, weights = self._router.forward(x)
        inputs = self._latent[0].forward(x) if self._latent else x
        out: torch.Tensor = self._experts(
            inputs, self._w_in, self._w_out, ids, weights, self._shape.activation
        )
        if self._latent:
            out = self._latent[1].forward(out)
        if self._shared is None:
            return out
        always = self._shared.part.forward(x, batch)
        if self._gate is not None:
            always = always * torch.sigmoid(self._gate.forward(x))
        return out + always

    def targets(self, prefix: str) -> Targets:
        """Where the checkpoint's tensors go: for each expert views of the stacked weights."""
        found = self._router.targets(prefix)
        for expert, (w_in, w_out) in enumerate(zip(self._w_in, self._w_out, strict=True)):
            stem = f"{prefix}experts.{expert}."
            names, parts = self._shape.in_names, w_in.split(self._shape.width)
            found.update({f"{stem}{n}.weight": part for n, part in zip(names, parts, strict=True)})
            found[f"{stem}{self._shape.out_name}.weight"] = w_out
        for projection in (*self._latent, *([self._gate] if self._gate else [])):
            found.update(projection.targets(prefix))
        if self._shared is not None:
            found.update(self._shared.part.targets(f"{prefix}{self._shared.name}."))
        return found

    def finish_loading(self) -> None:
        """After all weights are in."""
        if self._shared is not None:
            self._shared.part.finish_loading()


def unpack_experts(
    name: str, value: torch.Tensor, stacked: Mapping[str, tuple[str, ...]]
) -> Targets:
    """The weights of single experts (views) in a tensor that stacks those of a layer.

    stacked: ending of such a tensor's name, and the parts [rows, inputs] that it has of each
    expert one below the other: [experts, parts * rows, inputs]. Nothing if it is no such tensor.
    Raises ValueError if the rows do not divide into the parts.
    """
    for ending, parts in stacked.items():
        if not name.endswith(ending) or value.dim() != 3:
            continue
        if value.shape[1] % len(parts):
            raise ValueError(f"{value.shape[1]} rows are not those of {' and '.join(parts)}")
        stem = name.removesuffix(ending)
        return {
            f"{stem}experts.{expert}.{part}.weight": rows
            for expert, matrix in enumerate(value)
            for part, rows in zip(parts, matrix.chunk(len(parts)), strict=True)
        }
    return {}
