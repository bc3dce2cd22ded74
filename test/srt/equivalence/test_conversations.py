"""Turns of a conversation: each goes on from where the last reply ended, wherever that is."""

from __future__ import annotations

import random
from typing import Any

import pytest

from support.in_process import InProcessServer
from support.oracle import check_greedy
from support.tiny_models import shared_model

TURN_LENS = (13, 5, 60, 31, 64, 3, 90)
REPLY_LENS = (1, 7, 5, 12, 3, 9, 4)


@pytest.mark.parametrize(
    "flags",
    [
        {"chunked_prefill_size": 7},
        {"chunked_prefill_size": 10, "pp_size": 3, "enable_mixed_chunk": True},
        {"chunked_prefill_size": 100, "pp_size": 2, "mamba_radix_cache_strategy": "extra_buffer"},
        {"chunked_prefill_size": 32, "page_size": 16, "pp_size": 2},
        {"dynamic": True, "pp_size": 2},
    ],
    ids=str,
)
def test_every_turn_is_answered_as_if_from_nothing(flags: dict[str, Any]) -> None:
    """Two conversations that part after their first turn, in step with each other."""
    folder = shared_model("untied")
    server = InProcessServer(folder, mamba_track_interval=64, **flags)
    rng = random.Random(1)
    talks: list[list[int]] = [[], []]
    for turn, (ask_len, reply_len) in enumerate(zip(TURN_LENS, REPLY_LENS, strict=True)):
        ask = [rng.randrange(256) for _ in range(ask_len)]
        for i, talk in enumerate(talks):
            talk.extend(ask if turn != 1 or i == 0 else [token ^ 1 for token in ask])
        replies = server.generate(talks, reply_len)
        for i, (talk, reply) in enumerate(zip(talks, replies, strict=True)):
            assert len(reply) == reply_len
            check_greedy(folder, talk, reply)
            if turn and server.memory.page_size == 1:
                assert server.cached[f"r{2 * turn + i}"] > 0
            talk.extend(reply)
    server.check_empty()


@pytest.mark.parametrize("chunk", [7, 20])
def test_a_prompt_may_part_from_a_conversation_anywhere(chunk: int) -> None:
    """Whatever state the turns left behind is one of the tokens it is filed under.

    Turns begin off the grid of chunk ends, so that grid lines lie inside of chunks.
    """
    folder = shared_model("small")
    server = InProcessServer(folder, chunked_prefill_size=chunk, max_mamba_cache_size=200)
    rng = random.Random(2)
    talk: list[int] = []
    for ask_len, reply_len in ((13, 7), (5, 6), (14, 5), (3, 2)):
        talk += [rng.randrange(256) for _ in range(ask_len)]
        talk += server.generate([talk], reply_len)[0]
    for cut in reversed(range(1, len(talk))):
        prompt = [*talk[:cut], (talk[cut] + 1) % 256]
        (output,) = server.generate([prompt], 1)
        check_greedy(folder, prompt, output)
    server.check_empty()
