"""Logits and greedy tokens of whole models equal those of `transformers`."""

from __future__ import annotations

import random
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from sglang.srt.managers.io_struct import TokenLogprobs
from sglang.srt.sampling.sampling_params import SamplingParams
from support.in_process import InProcessServer
from support.oracle import check_greedy, oracle_logits
from support.tiny_models import shared_model

NUM_NEW = 6


def prompts_of(*lens: int, vocab: int = 256) -> list[list[int]]:
    rng = random.Random(len(lens))
    return [[rng.randrange(vocab) for _ in range(n)] for n in lens]


MIXED = prompts_of(1, 5, 63, 64, 65, 130, 201)


def check_all(folder: Path, server: InProcessServer, prompts: list[list[int]]) -> None:
    for prompt, output in zip(prompts, server.generate(prompts, NUM_NEW), strict=True):
        assert len(output) == NUM_NEW
        check_greedy(folder, prompt, output)


def cases(shapes: list[str], pp_sizes: list[int], chunks: list[int], fast: set[Any]) -> list[Any]:
    """All combinations, those outside of `fast` marked slow."""
    return [
        pytest.param(*case, marks=[] if case in fast else pytest.mark.slow)
        for case in product(shapes, pp_sizes, chunks)
    ]


@pytest.mark.parametrize(
    ("shape", "pp_size", "chunk"),
    cases(
        ["small", "untied", "wide_values"],
        [1, 2, 3, 4],
        [7, 64, -1],
        {
            ("small", 3, 7),
            ("small", 1, 64),
            ("small", 2, -1),
            ("untied", 4, 64),
            ("wide_values", 1, -1),
            ("wide_values", 3, 64),
        },
    ),
)
def test_batched_greedy_tokens(shape: str, pp_size: int, chunk: int) -> None:
    folder = shared_model(shape)
    server = InProcessServer(folder, pp_size=pp_size, chunked_prefill_size=chunk)
    check_all(folder, server, MIXED)


@pytest.mark.parametrize("chunk", [1, 3])
def test_tiny_chunks(chunk: int) -> None:
    folder = shared_model("small")
    server = InProcessServer(folder, pp_size=2, chunked_prefill_size=chunk)
    check_all(folder, server, prompts_of(2, 3, 4, 66))


@pytest.mark.parametrize(
    ("shape", "partition"),
    [
        ("deep", "4,4"),
        ("deep", "1,6,1"),
        ("deep", "3,1,3,1"),  # a stage of one attention layer alone; one without any
        ("ten_layers", "4,3,3"),
        ("ten_layers", "1,9"),
        ("attention_only", "2,2"),
        ("linear_only", "1,3"),
        ("small", "3,1"),
    ],
)
def test_any_partition(shape: str, partition: str) -> None:
    folder = shared_model(shape)
    stages = partition.count(",") + 1
    server = InProcessServer(folder, pp_size=stages, partition=partition)
    check_all(folder, server, MIXED)


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": torch.bfloat16},
        {"multimodal": True},
        {"max_shard_size": "40KB"},
        {"shape": "untied", "dtype": torch.float16, "multimodal": True, "max_shard_size": "60KB"},
    ],
    ids=str,
)
@pytest.mark.parametrize("pp_size", [1, 2])
def test_checkpoint_formats(options: dict[str, Any], pp_size: int) -> None:
    folder = shared_model(**options)
    if "max_shard_size" in options:
        assert len(list(folder.glob("*.safetensors"))) > 2
    check_all(folder, InProcessServer(folder, pp_size=pp_size), MIXED)


@pytest.mark.parametrize("pp_size", [1, 2])
def test_matrices_stored_in_bfloat16_are_computed_with_in_fp32(pp_size: int) -> None:
    """A checkpoint in bfloat16 loses nothing by `--dtype bfloat16`: equal to fp32 arithmetic."""
    folder = shared_model("untied", dtype=torch.bfloat16)
    server = InProcessServer(folder, pp_size=pp_size, dtype="bfloat16", chunked_prefill_size=100)
    stored = {t.dtype for r in server.runners for t in r.model.targets().values() if t.dim() == 2}
    assert stored == {torch.bfloat16}
    check_all(folder, server, MIXED)


@pytest.mark.parametrize(
    ("shape", "pp_size", "chunk"),
    cases(
        ["small", "untied", "wide_values", "attention_only"],
        [1, 3],
        [3, 64],
        {("small", 1, 64), ("untied", 3, 64), ("wide_values", 1, 3), ("attention_only", 3, 64)},
    ),
)
def test_logprobs_of_every_prompt_token(shape: str, pp_size: int, chunk: int) -> None:
    """All logits of a prompt within 1e-4: each token's logprob, and the whole vocabulary's."""
    folder = shared_model(shape)
    server = InProcessServer(folder, pp_size=pp_size, chunked_prefill_size=chunk)
    (prompt,) = prompts_of(150)
    wanted = torch.log_softmax(oracle_logits(folder, prompt), dim=-1)
    vocab = list(range(wanted.shape[1]))
    server.add(
        "r",
        prompt,
        1,
        return_logprob=True,
        logprob_start_len=0,
        token_ids_logprob=vocab,
    )
    server.run()
    found: list[TokenLogprobs] = server.input_logprobs["r"]
    assert [entry.token_id for entry in found] == prompt
    assert found[0].logprob is None
    for position, entry in enumerate(found[1:]):
        assert entry.logprob == pytest.approx(float(wanted[position, entry.token_id]), abs=1e-4)
        row = torch.tensor([value for value, _ in entry.chosen_ids])
        torch.testing.assert_close(row, wanted[position], rtol=0, atol=1e-4)
    (last,) = server.logprobs["r"]
    row = torch.tensor([value for value, _ in last.chosen_ids])
    torch.testing.assert_close(row, wanted[-1], rtol=0, atol=1e-4)


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("shape", ["small", "attention_only", "linear_only"])
def test_prefix_hit_gives_the_tokens_of_a_miss(shape: str, page_size: int) -> None:
    """Also with prompts that part in the middle, and ones that go on where a reply ended."""
    folder = shared_model(shape)
    server = InProcessServer(folder, pp_size=2, page_size=page_size)
    (first, tail) = prompts_of(200, 50)
    (reply,) = server.generate([first], NUM_NEW)
    check_greedy(folder, first, reply)
    later = [first, first[:130] + tail, first + reply + tail, first[:64] + tail]
    for number, prompt in enumerate(later):
        (output,) = server.generate([prompt], NUM_NEW)
        check_greedy(folder, prompt, output)
        if number in (0, 2):
            assert server.cached[f"r{number + 1}"] >= 192
    check_all(folder, server, later)


def test_sampled_tokens_do_not_depend_on_the_pipeline() -> None:
    """Random draws are made from the same logits: any split, chunking and company, same tokens."""
    folder = shared_model("untied")
    found = []
    for pp_size, chunk in ((1, 64), (2, 7), (4, 512)):
        server = InProcessServer(folder, pp_size=pp_size, chunked_prefill_size=chunk)
        for i, prompt in enumerate(MIXED):
            params = SamplingParams(max_new_tokens=8, temperature=0.9, top_p=0.9, sampling_seed=i)
            server.add(f"s{i}", prompt, 8, params)
        server.run()
        found.append([server.tokens[f"s{i}"] for i in range(len(MIXED))])
    assert found[0] == found[1] == found[2]
