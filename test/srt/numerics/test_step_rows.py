"""A step computes the same however its rows are cut, mixed, split over stages or restored."""

from __future__ import annotations

import random

import pytest
import torch

from sglang.srt.model_executor import output_builder
from sglang.srt.platform import Platform
from support.oracle import oracle_logits
from support.stage_chain import Row, StageChain, greedy
from support.tiny_models import shared_model

TOLERANCE = {"rtol": 1e-4, "atol": 1e-4}


def tokens_of(count: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(256) for _ in range(count)]


def run_in_chunks(chain: StageChain, request: int, tokens: list[int], chunks: list[int]) -> None:
    done = 0
    for chunk in chunks:
        chain.step([Row(request, tokens[done : done + chunk])])
        done += chunk
    assert done == len(tokens)


@pytest.mark.parametrize("cuts", [(), (2,), (3,), (1, 2, 3)], ids=str)
@pytest.mark.parametrize("shape", ["small", "wide_values"])
def test_a_mixed_step_gives_each_row_its_own_logits(shape: str, cuts: tuple[int, ...]) -> None:
    """Decode rows, a first chunk, a later chunk and a one-token chunk in one step."""
    folder = shared_model(shape)
    chain = StageChain.load(folder, cuts)
    prompts = [tokens_of(n, seed=n) for n in (7, 65, 130, 20, 90, 64)]
    pasts = [6, 64, 70, 0, 89, 0]
    for i, (prompt, past) in enumerate(zip(prompts, pasts, strict=True)):
        if past:
            chain.step([Row(i + 1, prompt[:past])])
    rows = [
        Row(i + 1, prompt[past:], as_prefill=i == 4)
        for i, (prompt, past) in enumerate(zip(prompts, pasts, strict=True))
    ]
    chain.step(rows)  # requests 1 and 2 decode, the others are chunks
    assert chain.logits is not None
    for i, prompt in enumerate(prompts):
        wanted = oracle_logits(folder, prompt)[-1]
        torch.testing.assert_close(chain.logits[i], wanted, **TOLERANCE)


@pytest.mark.parametrize("seed", range(4))
def test_states_after_any_chunks_are_those_of_one_pass(seed: int) -> None:
    rng = random.Random(seed)
    chain = StageChain.load(shared_model("small"), (2,))
    tokens = tokens_of(rng.randrange(150, 260), seed)
    chunks, left = [], len(tokens)
    while left:
        chunks.append(min(left, rng.choice([1, 2, 7, 33, 63, 64, 65, 100])))
        left -= chunks[-1]
    chain.step([Row(1, tokens)])
    run_in_chunks(chain, 2, tokens, chunks)
    for whole, cut in zip(chain.states(1), chain.states(2), strict=True):
        torch.testing.assert_close(cut, whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", ["small", "linear_only"])
def test_tracked_states_are_those_of_a_run_up_to_there(shape: str) -> None:
    """Inside a step, at its end, in a batch, and after a decode step."""
    chain = StageChain.load(shared_model(shape), (1, 3))
    tokens, other = tokens_of(200), tokens_of(150, seed=1)
    chain.step([Row(1, tokens[:30]), Row(2, other[:3])])
    chain.step(
        [
            Row(1, tokens[30:199], tracks=[(64, 10), (128, 11), (192, 12), (199, 13)]),
            Row(2, other[3:], tracks=[(64, 14), (150, 15)]),
        ]
    )
    chain.step([Row(1, tokens[199:], tracks=[(200, 16)])])
    sources = {10: tokens[:64], 11: tokens[:128], 12: tokens[:192], 13: tokens[:199],
               14: other[:64], 15: other, 16: tokens}  # fmt: skip
    for slot, prefix in sources.items():
        request = slot - 7  # any request that was not there
        chain.step([Row(request, prefix)])
        for tracked, ran in zip(chain.states(slot), chain.states(request), strict=True):
            torch.testing.assert_close(tracked, ran, rtol=1e-4, atol=1e-5)
        assert any(state.abs().sum() > 0 for state in chain.states(slot))


def test_a_slot_that_nobody_names_is_left_alone() -> None:
    chain = StageChain.load(shared_model("small"))
    marks = {slot: 1.0 + slot for slot in range(24) if slot not in (1, 2, 9)}
    for pool in chain.mamba_pools:
        for state in (*pool._conv.values(), *pool._temporal.values()):
            for slot, mark in marks.items():
                state[slot] = mark
    chain.step([Row(1, tokens_of(5)), Row(2, tokens_of(70), tracks=[(64, 9)])])
    chain.step([Row(1, [3]), Row(2, tokens_of(3))])
    for slot, mark in marks.items():
        assert all(bool((state == mark).all()) for state in chain.states(slot)), slot


@pytest.mark.parametrize("ssm_dtype", [torch.float32, torch.bfloat16])
def test_going_on_from_a_tracked_state_is_exact(ssm_dtype: torch.dtype) -> None:
    """Also with states of 16 bits: a prompt that was not cached passes through the same values."""
    chain = StageChain.load(shared_model("linear_only"), ssm_dtype=ssm_dtype)
    tokens = tokens_of(200)
    chain.step([Row(1, tokens, tracks=[(128, 9)])])
    missed = chain.logits
    chain.lens[2] = 128  # as after a prefix hit
    chain.step([Row(2, tokens[128:])], restore=[(9, 2)])
    assert missed is not None and chain.logits is not None
    torch.testing.assert_close(chain.logits, missed, rtol=1e-5, atol=1e-5)
    for restored, ran in zip(chain.states(2), chain.states(1), strict=True):
        torch.testing.assert_close(restored.float(), ran.float(), rtol=1e-5, atol=1e-5)


def test_a_used_slot_starts_from_nothing() -> None:
    chain = StageChain.load(shared_model("small"))
    tokens = tokens_of(40)
    chain.step([Row(1, tokens)])
    fresh = chain.logits
    del chain.lens[1]  # the request is gone, its slot goes to another
    chain.step([Row(1, tokens_of(80, seed=5))])
    del chain.lens[1]
    chain.step([Row(1, tokens)])
    assert fresh is not None and chain.logits is not None
    torch.testing.assert_close(chain.logits, fresh, rtol=1e-5, atol=1e-5)


def test_input_logprobs_of_some_positions_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = shared_model("small")
    tokens = tokens_of(50)
    wanted = torch.log_softmax(oracle_logits(folder, tokens), -1)
    for budget in (1, 300 * 7, 2**24):
        monkeypatch.setattr(output_builder, "MAX_LOGITS", budget)
        chain = StageChain.load(folder)
        settings = greedy(1, return_logprob=True, top_logprobs_num=3, token_ids_logprob=[5, 1])
        result = chain.step(
            [Row(1, tokens[:49], input_logprobs=True, next_input=tokens[49])], sampling=[settings]
        )
        (found,) = result.input_logprobs
        assert [entry.token_id for entry in found] == tokens[1:]
        for position, entry in enumerate(found):
            row = wanted[position]
            assert entry.logprob == pytest.approx(float(row[entry.token_id]), abs=1e-4)
            values, ids = row.topk(3)
            assert [token for _, token in entry.top] == ids.tolist()
            assert [value for value, _ in entry.top] == pytest.approx(values.tolist(), abs=1e-4)
            assert [token for _, token in entry.chosen_ids] == [5, 1]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_stage_that_computes_in_16_bits_stays_close(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As stages on GPUs do; gates, norms and states are fp32 even there."""
    folder = shared_model("wide_values")
    monkeypatch.setattr(Platform, "compute_dtype", lambda *_: dtype)
    chain = StageChain.load(folder, (3,))
    tokens = tokens_of(100)
    chain.step([Row(1, tokens[:70])])
    chain.step([Row(1, tokens[70:99]), Row(2, tokens[:40])])
    chain.step([Row(1, tokens[99:]), Row(2, tokens[40:])])
    assert chain.logits is not None and chain.logits.dtype == torch.float32
    wanted = oracle_logits(folder, tokens)[-1]
    for row in chain.logits:
        assert float(torch.cosine_similarity(row, wanted, dim=0)) > 0.995
