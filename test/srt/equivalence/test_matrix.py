"""One set of prompts through every setting that must not change a token.

By default any two settings meet in some case. Any three, or all combinations (hours):

    SGLANG_TEST_MATRIX=threes python -m pytest test/srt/equivalence
    SGLANG_TEST_MATRIX=all python -m pytest test/srt/equivalence
"""

from __future__ import annotations

import os
import random
from dataclasses import astuple
from functools import cache
from itertools import combinations, product

import pytest

from equivalence.matrix import DIMENSIONS, UNEVEN, Case, all_cases, covering
from support.in_process import InProcessServer
from support.oracle import check_greedy
from support.tiny_models import shared_model

_RNG = random.Random(0)
SHARED = [_RNG.randrange(256) for _ in range(150)]


def fresh(count: int) -> list[int]:
    return [_RNG.randrange(256) for _ in range(count)]


# Lengths around pages (16), chunks (7, 64, 100) and the grid (64); shared prefixes of odd lengths.
PROMPTS = [
    fresh(1),
    fresh(7),
    fresh(16),
    SHARED[:64],
    SHARED[:65],
    SHARED[:63] + fresh(2),
    SHARED[:100] + fresh(28),
    SHARED[:128] + fresh(1),
    SHARED,
    SHARED[:77] + fresh(120),
]
NUM_NEW = 5

# Three of them fit into a small pool, but not with all that they are going to generate.
GROWING = [fresh(17), SHARED[:33], SHARED[:40], fresh(5)]
NUM_GROWN = 60
SMALL_POOL = {1: 192, 16: 224}  # tokens, by page size


@cache
def wanted(model: str, growing: bool) -> list[list[int]]:
    """Tokens of the plainest server, each checked against `transformers`."""
    prompts, count = (GROWING, NUM_GROWN) if growing else (PROMPTS, NUM_NEW)
    server = InProcessServer(shared_model(model), chunked_prefill_size=-1, disable_radix_cache=True)
    found = [server.generate([prompt], count)[0] for prompt in prompts]
    for prompt, output in zip(prompts, found, strict=True):
        check_greedy(shared_model(model), prompt, output)
    return found


def build(case: Case) -> InProcessServer:
    """The server of a case."""
    small = case.load == "retraction"
    return InProcessServer(
        shared_model(case.model),
        partition=UNEVEN[case.pp_size] if case.model == "deep" else None,
        dynamic=case.chunk == "dynamic",
        pp_size=case.pp_size,
        chunked_prefill_size=_chunk_size(case),
        disable_radix_cache=case.cache == "off",
        mamba_radix_cache_strategy="auto" if case.cache == "off" else case.cache,
        mamba_track_interval=64,
        page_size=case.page_size,
        enable_mixed_chunk=case.mixed,
        pp_async_batch_depth=case.async_depth,
        max_total_tokens=SMALL_POOL[case.page_size] if small else 2048,
        max_mamba_cache_size=10 if small else 24,
        max_running_requests=4 if small else 6,
    )


def _chunk_size(case: Case) -> int:
    """The static size, in whole pages."""
    size = 64 if isinstance(case.chunk, str) else case.chunk
    return size if size < 0 else -(-size // case.page_size) * case.page_size


def run_alone(server: InProcessServer) -> list[list[int]]:
    """One after another, twice: the second time from the cache."""
    first = [server.generate([prompt], NUM_NEW)[0] for prompt in PROMPTS]
    second = [server.generate([prompt], NUM_NEW)[0] for prompt in PROMPTS[::3]]
    assert second == first[::3]
    return first


def run_with_aborts(server: InProcessServer) -> list[list[int]]:
    """All together, between requests that go away at every stage of their life."""
    for i, prompt in enumerate(PROMPTS):
        server.add(f"kept{i}", prompt, NUM_NEW)
        server.add(f"gone{i}", prompt[:90] + [7] * i, 40)
    for i in range(len(PROMPTS)):
        for _ in range(i):
            server.step()
        server.abort(f"gone{i}")
    server.run()
    assert {server.finished[f"gone{i}"].type for i in range(len(PROMPTS))} == {"abort"}
    return [server.tokens[f"kept{i}"] for i in range(len(PROMPTS))]


def run_load(case: Case, server: InProcessServer) -> list[list[int]]:
    """The outputs of a case's requests, in order."""
    if case.load == "alone":
        return run_alone(server)
    if case.load == "together":
        return server.generate(PROMPTS, NUM_NEW)
    if case.load == "aborts":
        return run_with_aborts(server)
    found = server.generate(GROWING, NUM_GROWN)
    # With mixed chunks of a few tokens, decode rows keep prompts from coming in.
    assert case.mixed or server.scheduler.planner.num_retracted > 0, "the pool is not small enough"
    return found


CASES = {"pairs": lambda: covering(2), "threes": lambda: covering(3), "all": all_cases}[
    os.environ.get("SGLANG_TEST_MATRIX", "pairs")
]()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_settings_change_no_token(case: Case) -> None:
    growing = case.load == "retraction"
    prompts, count = (GROWING, NUM_GROWN) if growing else (PROMPTS, NUM_NEW)
    server = build(case)
    found = run_load(case, server)
    for prompt, output, plain in zip(prompts, found, wanted(case.model, growing), strict=True):
        assert len(output) == count
        if output != plain:  # right all the same where two logits are as good as equal
            check_greedy(shared_model(case.model), prompt, output)
    server.check_empty()


def test_default_cases_cover_all_pairs_of_settings() -> None:
    chosen = [astuple(case) for case in covering(2)]
    assert len(chosen) == len(set(chosen)) <= 30
    for i, j in combinations(range(len(DIMENSIONS)), 2):
        met = {(values[i], values[j]) for values in chosen}
        assert met == set(product(DIMENSIONS[i], DIMENSIONS[j]))
