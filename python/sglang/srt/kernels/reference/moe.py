"""Routed experts (arXiv:1701.06538): each token through the feed-forward layers chosen for it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from sglang.srt.kernels.reference.pointwise import linear, relu_squared, silu_and_mul

# What stands between an expert's two matrices, by the name that callers give.
ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu_and_mul": silu_and_mul,
    "relu_squared": relu_squared,
}


def moe_experts(
    x: torch.Tensor,
    w_in: torch.Tensor,
    w_out: torch.Tensor,
    expert_ids: torch.Tensor,
    expert_weights: torch.Tensor,
    activation: str,
) -> torch.Tensor:
    """sum over a token's experts e of weight_e * w_out[e] activation(w_in[e] x).

    x: [tokens, hidden]; w_in: [experts, inner, hidden], inner being twice the width (gate rows
    first) for "silu_and_mul"; w_out: [experts, hidden, width]; expert_ids: [tokens, top_k], int64,
    each expert at most once a token; expert_weights: the same shape, fp32. Returns [tokens, hidden]
    in x's dtype, summed in fp32.

    Tokens are sorted by expert: two matrix products for each expert that is used, none for others.
    A token's terms are added in the order of expert numbers, so that its sum does not depend on
    what else is in the batch. Raises KeyError on an unknown activation.
    """
    parts = (linear, ACTIVATIONS[activation])
    return run_experts(x, w_in, w_out, expert_ids, expert_weights, parts)


def run_experts(
    x: torch.Tensor,
    w_in: torch.Tensor,
    w_out: torch.Tensor,
    expert_ids: torch.Tensor,
    expert_weights: torch.Tensor,
    parts: tuple[Callable[..., torch.Tensor], Callable[[torch.Tensor], torch.Tensor]],
) -> torch.Tensor:
    """`moe_experts` made of a matrix product, as `pointwise.linear`, and an activation."""
    product, act = parts
    top_k = expert_ids.shape[1]
    order = expert_ids.flatten().argsort(stable=True)
    tokens = order // top_k
    scales = expert_weights.flatten().index_select(0, order).unsqueeze(1)
    counts = torch.bincount(expert_ids.flatten(), minlength=len(w_in)).tolist()
    out = x.new_zeros((len(x), w_out.shape[1]), dtype=torch.float32)
    first = 0
    for expert, count in enumerate(counts):
        if not count:
            continue
        now, first = slice(first, first + count), first + count
        inner = act(product(x.index_select(0, tokens[now]), w_in[expert], None))
        change = product(inner, w_out[expert], None).float() * scales[now]
        out.index_add_(0, tokens[now], change)
    return out.to(x.dtype)
