"""Sampling: exact where it is exact, right on average where it is random."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from sglang.srt.layers import sampler as sampler_module
from sglang.srt.layers.sampler import Sampler, SamplerError, hash_uniform
from support.stage_chain import greedy

VOCAB = 50


def logits_of(rows: int = 1, vocab: int = VOCAB, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 2


def sample(logits: torch.Tensor, settings: list[dict[str, Any]], seq_len: int = 5) -> list[int]:
    """One step of fresh requests, one a row."""
    found = Sampler(logits.shape[1])
    found.set_rows([greedy(i + 1, **fields) for i, fields in enumerate(settings)])
    return found.sample(logits, range(1, len(settings) + 1), [seq_len] * len(settings))


def draws(logits: torch.Tensor, count: int, **fields: Any) -> torch.Tensor:
    """Share of each token among `count` draws of one row with different seeds."""
    rows = [{"temperature": 1.0, "seed": i, **fields} for i in range(count)]
    tokens = sample(logits.expand(count, -1), rows)
    return torch.bincount(torch.tensor(tokens), minlength=logits.shape[1]) / count


def test_greedy_takes_the_largest_and_the_lowest_id_of_equals() -> None:
    logits = torch.zeros(2, VOCAB)
    logits[0, [7, 3, 40]] = 5.0
    logits[1, 49] = 1.0
    assert sample(logits, [{}, {}]) == [3, 49]


@pytest.mark.parametrize("temperature", [1e-30, 1e-6, 1e-4])
def test_a_tiny_temperature_is_greedy(temperature: float) -> None:
    logits = logits_of(4)
    tokens = sample(logits, [{"temperature": temperature, "seed": i} for i in range(4)])
    assert tokens == logits.argmax(-1).tolist()


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_draws_follow_the_softmax(temperature: float) -> None:
    logits = logits_of()
    wanted = torch.softmax(logits[0] / temperature, -1)
    found = draws(logits, 8000, temperature=temperature)
    assert (found - wanted).abs().sum() / 2 < 0.05  # total variation


def kept_by_definition(
    logits: torch.Tensor, top_k: int = -1, top_p: float = 1.0, min_p: float = 0.0
) -> set[int]:
    """Token by token in falling order: top_k, then top_p among those, then min_p."""
    probs = torch.softmax(logits.double(), -1)
    order = sorted(range(len(probs)), key=lambda i: (-float(probs[i]), i))
    order = order[:top_k] if top_k > 0 else order
    total = sum(float(probs[i]) for i in order)
    kept, mass = [], 0.0
    for i in order:
        if mass < top_p:
            kept.append(i)
        mass += float(probs[i]) / total
    return {i for i in kept if probs[i] >= min_p * probs[order[0]]}


@pytest.mark.parametrize(
    "cuts",
    [
        {"top_k": 1},
        {"top_k": 5},
        {"top_p": 0.6},
        {"top_p": 1e-9},
        {"min_p": 0.2},
        {"top_k": 12, "top_p": 0.8},
        {"top_k": 20, "top_p": 0.95, "min_p": 0.1},
    ],
    ids=str,
)
@pytest.mark.parametrize("candidates", [4, 1024])
def test_cuts_keep_the_right_tokens(
    cuts: dict[str, Any], candidates: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever number of candidates is sorted first."""
    monkeypatch.setattr(sampler_module, "CANDIDATES", candidates)
    logits = logits_of(seed=3)
    kept = kept_by_definition(logits[0], **cuts)
    wanted = torch.softmax(logits[0], -1)
    wanted = torch.tensor([float(wanted[i]) if i in kept else 0.0 for i in range(VOCAB)])
    found = draws(logits, 2000, **cuts)
    assert set(found.nonzero().flatten().tolist()) <= kept
    assert (found - wanted / wanted.sum()).abs().sum() / 2 < 0.08


@pytest.mark.parametrize("fields", [{}, {"top_p": 0.9}, {"top_k": 30}, {"min_p": 0.01}], ids=str)
def test_the_number_of_candidates_changes_no_draw(
    fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    logits = logits_of(64)
    logits[:, 10:20] = logits[:, 10:11]  # equal ones, also at the edge of the candidates
    rows = [{"temperature": 0.9, "seed": i, **fields} for i in range(64)]
    found = []
    for candidates in (1, 8, 15, 49, 1024):
        monkeypatch.setattr(sampler_module, "CANDIDATES", candidates)
        found.append(sample(logits, rows))
    assert all(tokens == found[0] for tokens in found)


def test_a_draw_depends_on_seed_and_position_alone() -> None:
    logits = logits_of(6, seed=1)
    rows = [
        {"temperature": 0.8, "seed": 11},
        {"temperature": 0.8, "top_p": 0.9, "seed": -4},
        {},
        {"temperature": 1.3, "top_k": 4, "seed": 2**63 - 1},
        {"temperature": 0.8, "min_p": 0.1, "seed": 5},
        {"temperature": 0.7, "seed": 6, "frequency_penalty": 1.0, "history": b"\1\0\0\0"},
    ]
    together = sample(logits, rows, seq_len=9)
    alone = [sample(logits[i : i + 1], [row], seq_len=9)[0] for i, row in enumerate(rows)]
    backwards = sample(logits.flip(0), rows[::-1], seq_len=9)[::-1]
    assert together == alone == backwards
    flat = torch.zeros(1, 10000)
    per_position = {sample(flat, [{"temperature": 1.0}], seq_len=n)[0] for n in range(50)}
    assert len(per_position) > 40


def test_uniform_numbers_are_uniform() -> None:
    """Neighbouring seeds and positions are unrelated; all lie in [0, 1)."""
    seeds = np.repeat(np.arange(100, dtype=np.uint64), 100)
    positions = np.tile(np.arange(100, dtype=np.uint64), 100)
    found = hash_uniform(seeds, positions)
    assert found.min() >= 0 and found.max() < 1
    assert abs(found.mean() - 0.5) < 0.01
    counts = np.bincount((found * 20).astype(int), minlength=20)
    assert ((counts - 500) ** 2 / 500).sum() < 43.8  # chi-square, 19 degrees, 0.1 %
    grid = found.reshape(100, 100)
    assert abs(np.corrcoef(grid[:-1].ravel(), grid[1:].ravel())[0, 1]) < 0.04
    assert abs(np.corrcoef(grid[:, :-1].ravel(), grid[:, 1:].ravel())[0, 1]) < 0.04


def history(*tokens: int) -> bytes:
    return np.asarray(tokens, dtype="<i4").tobytes()


def test_logit_bias_decides() -> None:
    logits = logits_of(2)
    assert sample(logits, [{"logit_bias": {17: 100.0}}, {}]) == [17, int(logits[1].argmax())]
    best = int(logits[0].argmax())
    assert sample(logits[:1], [{"logit_bias": {best: -100.0}}]) != [best]


def test_frequency_and_presence_penalties_count_the_output_only() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, 3], logits[0, 8], logits[0, 20] = 3.0, 2.5, 1.2
    past = {"history": history(3, 3, 3, 8), "num_prompt": 3}
    assert sample(logits, [{**past, "frequency_penalty": 2.0}]) == [3]
    past["num_prompt"] = 0
    assert sample(logits, [{**past, "frequency_penalty": 0.5}]) == [8]  # 3 - 1.5, 2.5 - 0.5
    assert sample(logits, [{**past, "presence_penalty": 2.0}]) == [20]  # 1.0, 0.5, 1.2
    assert sample(logits, [{**past, "presence_penalty": 1.0}]) == [3]


def test_repetition_penalty_counts_prompt_and_output() -> None:
    logits = torch.full((1, VOCAB), -9.0)
    logits[0, 3], logits[0, 8], logits[0, 20] = 4.0, 3.0, -0.5
    past = {"history": history(3, 8), "num_prompt": 1}
    assert sample(logits, [{**past, "repetition_penalty": 1.2}]) == [3]
    assert sample(
        logits, [{"history": history(3), "num_prompt": 1, "repetition_penalty": 2.0}]
    ) == [8]
    logits[0, [3, 8]] = torch.tensor([-0.3, -0.4])
    assert sample(logits, [{**past, "repetition_penalty": 2.0}]) == [20]


def test_sampled_tokens_are_counted() -> None:
    found = Sampler(VOCAB)
    found.set_rows([greedy(1, frequency_penalty=1.0, history=history(0), num_prompt=1)])
    logits = torch.zeros(1, VOCAB)
    logits[0, 3], logits[0, 8] = 1.5, 1.0
    assert [found.sample(logits, [1], [n])[0] for n in range(3)] == [3, 8, 3]
    assert logits[0, 3] == 1.5, "the logits that logprobs are made of stay as they were"


def test_stop_tokens_wait_for_the_minimum_length() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, 3], logits[0, 8] = 2.0, 1.0
    row = {"min_len": 10, "stop_ids": [3]}
    assert sample(logits, [row], seq_len=9) == [8]
    assert sample(logits, [row], seq_len=10) == [3]


def test_a_new_request_in_the_slot_brings_its_own_settings() -> None:
    found = Sampler(VOCAB)
    logits = logits_of()
    found.set_rows([greedy(1, logit_bias={5: 100.0})])
    assert found.sample(logits, [1], [1]) == [5]
    found.set_rows([greedy(1)])
    assert found.sample(logits, [1], [1]) == [int(logits.argmax())]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_damaged_logits_are_refused_by_row(bad: float) -> None:
    logits = logits_of(3)
    logits[1, 4] = bad
    with pytest.raises(SamplerError, match=r"row 1 \(request slot 2\)"):
        sample(logits, [{}, {"temperature": 1.0}, {}])
