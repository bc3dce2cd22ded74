"""Routed experts equal their definition, whatever else is in the batch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from sglang.srt.kernels.reference.moe import moe_experts
from sglang.srt.kernels.registry import get_op
from sglang.srt.layers.linear import WeightFactory
from sglang.srt.layers.moe import STACKED, ExpertShape, MoE, Router, Routing, unpack_experts

NUM_EXPERTS, TOP_K, HIDDEN, WIDTH, TOKENS = 8, 3, 16, 12, 21
FACTORY = WeightFactory(torch.float32, "cpu")


def random_experts(activation: str, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(seed)
    inner = 2 * WIDTH if activation == "silu_and_mul" else WIDTH
    return torch.randn(NUM_EXPERTS, inner, HIDDEN), torch.randn(NUM_EXPERTS, HIDDEN, WIDTH)


def random_choice(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.rand(count, NUM_EXPERTS).topk(TOP_K).indices
    return ids, torch.rand(count, TOP_K)


def by_definition(x, w_in, w_out, ids, weights, activation):
    """One token and one expert at a time."""
    out = torch.zeros_like(x)
    for token, (chosen, scales) in enumerate(zip(ids.tolist(), weights, strict=True)):
        for expert, scale in zip(chosen, scales, strict=True):
            inner = w_in[expert] @ x[token]
            if activation == "silu_and_mul":
                inner = F.silu(inner[:WIDTH]) * inner[WIDTH:]
            else:
                inner = inner.clamp(min=0) ** 2
            out[token] += scale * (w_out[expert] @ inner)
    return out


@pytest.mark.parametrize("activation", ["silu_and_mul", "relu_squared"])
def test_experts_equal_the_definition(activation: str) -> None:
    w_in, w_out = random_experts(activation)
    x, (ids, weights) = torch.randn(TOKENS, HIDDEN), random_choice(TOKENS)
    wanted = by_definition(x, w_in, w_out, ids, weights, activation)
    for experts in (moe_experts, get_op("moe_experts", "cpu")):
        found = experts(x, w_in, w_out, ids, weights, activation)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_experts_that_are_not_chosen_are_not_computed() -> None:
    w_in, w_out = random_experts("silu_and_mul")
    w_in[5], w_out[5] = float("nan"), float("nan")
    ids, weights = random_choice(TOKENS)
    ids[ids == 5] = 4
    ids[:, :2] = torch.tensor([1, 2])
    ids[:, 2] = 4
    found = moe_experts(torch.randn(TOKENS, HIDDEN), w_in, w_out, ids, weights, "silu_and_mul")
    assert found.isfinite().all()


def test_a_token_does_not_depend_on_its_neighbours() -> None:
    w_in, w_out = random_experts("silu_and_mul")
    x, (ids, weights) = torch.randn(TOKENS, HIDDEN), random_choice(TOKENS)
    together = moe_experts(x, w_in, w_out, ids, weights, "silu_and_mul")
    for token in range(TOKENS):
        one = slice(token, token + 1)
        alone = moe_experts(x[one], w_in, w_out, ids[one], weights[one], "silu_and_mul")
        torch.testing.assert_close(alone, together[one], rtol=1e-5, atol=1e-5)


def router(routing: Routing, seed: int = 0) -> Router:
    torch.manual_seed(seed)
    made = Router(routing, HIDDEN, FACTORY)
    for weight in made.targets("").values():
        weight.normal_()
    return made


@pytest.mark.parametrize("normalise", [False, True])
def test_softmax_routing(normalise: bool) -> None:
    made = router(Routing(NUM_EXPERTS, TOP_K, normalise=normalise, scale=2.5))
    x = torch.randn(TOKENS, HIDDEN)
    logits = x @ made.targets("")["gate.weight"].t()
    best = logits.topk(TOP_K)
    wanted = logits.softmax(-1).gather(1, best.indices)
    if normalise:
        wanted = best.values.softmax(-1)
    ids, weights = made.forward(x)
    assert torch.equal(ids, best.indices)
    torch.testing.assert_close(weights, 2.5 * wanted)


def test_a_correction_bias_counts_for_the_choice_alone() -> None:
    made = router(Routing(NUM_EXPERTS, 2, "sigmoid", normalise=False, bias_name="bias"))
    bias = made.targets("")["bias"]
    bias.zero_()[6] = 10.0
    x = torch.randn(TOKENS, HIDDEN)
    ids, weights = made.forward(x)
    assert (ids[:, 0] == 6).all()
    scores = (x @ made.targets("")["gate.weight"].t()).sigmoid()
    torch.testing.assert_close(weights, scores.gather(1, ids))


def test_groups_limit_the_choice() -> None:
    made = router(Routing(NUM_EXPERTS, 2, "sigmoid", num_groups=4, top_groups=1))
    x = torch.randn(TOKENS, HIDDEN)
    scores = (x @ made.targets("")["gate.weight"].t()).sigmoid()
    best_group = scores.view(TOKENS, 4, 2).sum(-1).argmax(-1)
    ids, _ = made.forward(x)
    assert torch.equal(ids.sort(-1).values, torch.stack([2 * best_group, 2 * best_group + 1], 1))


def test_stacked_and_single_experts_are_the_same_weights() -> None:
    moe = MoE(Routing(NUM_EXPERTS, TOP_K), ExpertShape(HIDDEN, WIDTH), FACTORY)
    w_in, w_out = random_experts("silu_and_mul")
    found = {
        **unpack_experts("m.experts.gate_up_proj", w_in, STACKED),
        **unpack_experts("m.experts.down_proj", w_out, STACKED),
    }
    targets = moe.targets("m.")
    assert found.keys() == targets.keys() - {"m.gate.weight"}
    assert torch.equal(found["m.experts.3.up_proj.weight"], w_in[3, WIDTH:])
    assert torch.equal(found["m.experts.3.down_proj.weight"], w_out[3])
    assert all(found[name].shape == targets[name].shape for name in found)


def test_other_tensors_are_not_taken_apart() -> None:
    assert unpack_experts("m.experts.down_proj", torch.zeros(2, 3), STACKED) == {}
    assert unpack_experts("m.linear.weight", torch.zeros(2, 2, 3), STACKED) == {}
    with pytest.raises(ValueError, match="3 rows"):
        unpack_experts("m.experts.gate_up_proj", torch.zeros(2, 3, 4), STACKED)
