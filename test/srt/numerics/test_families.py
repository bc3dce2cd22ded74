"""Every family equals its `transformers` implementation, at any split and chunk size."""

from __future__ import annotations

import random

import pytest
import torch

from support.families import families, family_model, family_shapes, split_without_attention
from support.in_process import InProcessServer
from support.oracle import check_greedy, oracle_logits
from support.stage_chain import Row, StageChain

SHAPES = pytest.mark.parametrize(("family", "shape"), family_shapes())
NUM_NEW = 6


def tokens_of(count: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(256) for _ in range(count)]


UNEQUAL = [tokens_of(n, n) for n in (1, 5, 63, 64, 65, 130)]


@pytest.mark.parametrize("name", families())
def test_a_family_has_two_unlike_shapes(name: str) -> None:
    assert len(families()[name].shapes) >= 2


@SHAPES
def test_all_logits(family: str, shape: str) -> None:
    """Prompts of unequal length in one step, then a token each: logits within 1e-4."""
    folder = family_model(family, shape)
    chain = StageChain.load(folder)
    prompts = [*UNEQUAL[1:], tokens_of(300)]
    for rows in (
        [Row(i + 1, prompt[:-1]) for i, prompt in enumerate(prompts)],
        [Row(i + 1, prompt[-1:]) for i, prompt in enumerate(prompts)],
    ):
        chain.step(rows)
        assert chain.logits is not None
        for row, logits in zip(rows, chain.logits, strict=True):
            prompt = prompts[row.request - 1][: chain.lens[row.request]]
            wanted = oracle_logits(folder, prompt)[-1]
            torch.testing.assert_close(logits, wanted, rtol=1e-4, atol=1e-4)


@SHAPES
@pytest.mark.parametrize(
    ("pp_size", "chunk"),
    [
        (1, 7),
        (1, -1),
        (2, 64),
        pytest.param(1, 64, marks=pytest.mark.slow),
        pytest.param(2, 7, marks=pytest.mark.slow),
        pytest.param(2, 37, marks=pytest.mark.slow),
    ],
)
def test_greedy_tokens_of_a_batch(family: str, shape: str, pp_size: int, chunk: int) -> None:
    folder = family_model(family, shape)
    server = InProcessServer(folder, pp_size=pp_size, chunked_prefill_size=chunk)
    for prompt, output in zip(UNEQUAL, server.generate(UNEQUAL, NUM_NEW), strict=True):
        check_greedy(folder, prompt, output)


@SHAPES
@pytest.mark.parametrize("chunk", [1, 3])
def test_tiny_chunks(family: str, shape: str, chunk: int) -> None:
    folder = family_model(family, shape)
    server = InProcessServer(folder, pp_size=2, chunked_prefill_size=chunk)
    prompts = [tokens_of(n, n) for n in (2, 4, 13)]
    for prompt, output in zip(prompts, server.generate(prompts, NUM_NEW), strict=True):
        check_greedy(folder, prompt, output)


@SHAPES
def test_a_stage_without_attention(family: str, shape: str) -> None:
    folder = family_model(family, shape)
    partition = split_without_attention(folder)
    if partition is None:
        return  # each layer of this shape attends
    server = InProcessServer(
        folder, pp_size=partition.count(",") + 1, partition=partition, chunked_prefill_size=37
    )
    for prompt, output in zip(UNEQUAL, server.generate(UNEQUAL, NUM_NEW), strict=True):
        check_greedy(folder, prompt, output)


@SHAPES
def test_prefix_hit_equals_miss(family: str, shape: str) -> None:
    """The same prompt again, one that parts from it, and one that goes on after the reply."""
    folder = family_model(family, shape)
    server = InProcessServer(folder, pp_size=2, chunked_prefill_size=64)
    first, tail = tokens_of(150), tokens_of(30, seed=1)
    (reply,) = server.generate([first], NUM_NEW)
    check_greedy(folder, first, reply)
    later = [first, first[:100] + tail, first + reply + tail]
    for number, prompt in enumerate(later, start=1):
        (output,) = server.generate([prompt], NUM_NEW)
        check_greedy(folder, prompt, output)
        assert server.cached[f"r{number}"] >= 64
