"""Sampled tokens and logprobs do not depend on stages, chunks, cache, company or retraction."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from sglang.srt.managers import schedule_policy
from sglang.srt.sampling.sampling_params import SamplingParams
from support.in_process import InProcessServer
from support.oracle import oracle_logits
from support.tiny_models import shared_model

_RNG = random.Random(5)
PROMPTS = [[_RNG.randrange(256) for _ in range(n)] for n in (3, 64, 65, 150)]
NUM_NEW = 12
SETTINGS: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 0.7, "top_p": 0.8, "top_k": 40},
    {"temperature": 1.3, "min_p": 0.05, "repetition_penalty": 1.2, "frequency_penalty": 0.4},
    {"temperature": 0.9, "presence_penalty": 0.8, "logit_bias": {7: 3.0, 9: -100.0}},
]


def sample_all(server: InProcessServer, num_new: int = NUM_NEW, alone: bool = False) -> list[Any]:
    for i, (prompt, settings) in enumerate(zip(PROMPTS, SETTINGS, strict=True)):
        params = SamplingParams(max_new_tokens=num_new, sampling_seed=100 + i, **settings)
        server.add(f"s{i}", prompt, num_new, params)
        if alone:
            server.run()
    server.run()
    return [server.tokens[f"s{i}"] for i in range(len(PROMPTS))]


@pytest.mark.parametrize(
    "flags",
    [
        {"pp_size": 2, "chunked_prefill_size": 7},
        {"pp_size": 3, "page_size": 16, "pp_async_batch_depth": 2},
        {"pp_size": 4, "disable_radix_cache": True, "enable_mixed_chunk": True},
        {"chunked_prefill_size": -1, "max_running_requests": 2},
    ],
    ids=str,
)
def test_same_seed_same_tokens(flags: dict[str, Any]) -> None:
    folder = shared_model("untied")
    wanted = sample_all(InProcessServer(folder), alone=True)
    assert len({tuple(tokens) for tokens in wanted}) == len(PROMPTS)
    server = InProcessServer(folder, **flags)
    assert sample_all(server) == wanted
    server.check_empty()


def test_same_seed_same_tokens_after_retraction(monkeypatch: pytest.MonkeyPatch) -> None:
    """Penalties see the tokens from before; draws go on at the position they had reached."""
    folder = shared_model("untied")
    wanted = sample_all(InProcessServer(folder), 60, alone=True)
    monkeypatch.setattr(schedule_policy, "DECODE_RESERVE", 4)
    server = InProcessServer(folder, pp_size=2, max_total_tokens=350, max_mamba_cache_size=8)
    assert sample_all(server, 60) == wanted
    assert server.scheduler.planner.num_retracted > 0
    server.check_empty()


def test_min_new_tokens_and_logit_bias_decide_the_end() -> None:
    """A stop token that is sure to come waits for the minimum, then ends the output."""
    folder = shared_model("small")
    server = InProcessServer(folder, pp_size=2)
    params = SamplingParams(
        max_new_tokens=20,
        min_new_tokens=6,
        temperature=0,
        stop_token_ids=[11],
        logit_bias={11: 100.0},
    )
    server.add("r", PROMPTS[0], 20, params)
    server.run()
    tokens = server.tokens["r"]
    assert len(tokens) == 7 and tokens[-1] == 11 and 11 not in tokens[:-1]
    assert server.finished["r"].type == "stop"


@pytest.mark.parametrize(("pp_size", "chunk"), [(1, 64), (2, 7), (4, 64)])
def test_one_logprob_entry_for_every_output_token(pp_size: int, chunk: int) -> None:
    folder = shared_model("small")
    server = InProcessServer(folder, pp_size=pp_size, chunked_prefill_size=chunk)
    for i, prompt in enumerate(PROMPTS):
        server.add(
            f"r{i}",
            prompt,
            NUM_NEW,
            return_logprob=True,
            top_logprobs_num=4,
            token_ids_logprob=[5, 250],
        )
    server.run()
    for i, prompt in enumerate(PROMPTS):
        tokens, entries = server.tokens[f"r{i}"], server.logprobs[f"r{i}"]
        assert [entry.token_id for entry in entries] == tokens
        assert server.input_logprobs[f"r{i}"] == []
        wanted = torch.log_softmax(oracle_logits(folder, prompt + tokens[:-1]), dim=-1)
        for row, entry in zip(wanted[len(prompt) - 1 :], entries, strict=True):
            assert entry.logprob == pytest.approx(float(row[entry.token_id]), abs=1e-4)
            values = [value for value, _ in entry.top]
            assert len(values) == 4 and values == sorted(values, reverse=True)
            assert values == pytest.approx(row.topk(4).values.tolist(), abs=1e-4)
            assert [token for _, token in entry.chosen_ids] == [5, 250]
            assert [value for value, _ in entry.chosen_ids] == pytest.approx(
                [float(row[5]), float(row[250])], abs=1e-4
            )


@pytest.mark.parametrize(
    ("start", "pp_size", "chunk"),
    [(0, 1, 64), (65, 1, 64), (0, 2, 7), (1, 2, 7), (63, 2, 7), (64, 2, 7), (149, 2, 7)],
)
def test_input_logprobs_from_any_position(start: int, pp_size: int, chunk: int) -> None:
    """Each prompt token from the start on once, whatever is cached and wherever chunks end."""
    folder, prompt = shared_model("small"), PROMPTS[3]
    server = InProcessServer(folder, pp_size=pp_size, chunked_prefill_size=chunk)
    server.generate([prompt], 2)  # so that all of it is cached
    server.add("r", prompt, 3, return_logprob=True, logprob_start_len=start, top_logprobs_num=2)
    server.run()
    found = server.input_logprobs["r"]
    assert [entry.token_id for entry in found] == prompt[start:]
    wanted = torch.log_softmax(oracle_logits(folder, prompt), dim=-1)
    if start == 0:
        assert found[0].logprob is None
        found, start = found[1:], 1
    for position, entry in enumerate(found, start=start):
        row = wanted[position - 1]
        assert entry.logprob == pytest.approx(float(row[prompt[position]]), abs=1e-4)
        assert [value for value, _ in entry.top] == pytest.approx(
            row.topk(2).values.tolist(), abs=1e-4
        )
    assert len(server.logprobs["r"]) == 3


def test_input_logprobs_come_once_after_retraction(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = shared_model("small")
    monkeypatch.setattr(schedule_policy, "DECODE_RESERVE", 4)
    server = InProcessServer(folder, pp_size=2, max_total_tokens=350, max_mamba_cache_size=8)
    for i, prompt in enumerate(PROMPTS):
        server.add(f"r{i}", prompt, 60, return_logprob=True, logprob_start_len=0)
    server.run()
    assert server.scheduler.planner.num_retracted > 0
    for i, prompt in enumerate(PROMPTS):
        assert [entry.token_id for entry in server.input_logprobs[f"r{i}"]] == prompt
        assert [e.token_id for e in server.logprobs[f"r{i}"]] == server.tokens[f"r{i}"]
