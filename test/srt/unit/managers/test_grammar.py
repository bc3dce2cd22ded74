"""Structured output through the real scheduler and model."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from sglang.srt.sampling.sampling_params import SamplingParams
from support.in_process import InProcessServer
from support.tiny_models import make_model

SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"a": {"type": "integer", "maximum": 99}, "b": {"enum": ["x", "y"]}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("grammar"), "small")


def run(server: InProcessServer, seconds: float = 20) -> None:
    """Grammars are compiled in a thread: turn until all is answered."""
    deadline = time.monotonic() + seconds
    while server.scheduler.reqs or server.inbox.messages or len(server.scheduler.ring):
        server.step()
        assert time.monotonic() < deadline
    server.run()


def text_of(folder: Path, ids: list[int]) -> str:
    return Tokenizer.from_file(str(folder / "tokenizer.json")).decode(ids)


@pytest.mark.parametrize("pp_size", [1, 2])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_output_follows_its_grammar(folder: Path, pp_size: int, temperature: float) -> None:
    """SGLang 28424: stages disagreed when one compiled faster; here stage 0 alone compiles."""
    server = InProcessServer(folder, pp_size=pp_size)
    cases = {
        "schema": {"json_schema": SCHEMA},
        "regex": {"regex": r"[0-9]{3}-[a-f]{2}"},
        "ebnf": {"ebnf": 'root ::= "yes" | "no, " [a-z]+ "."'},
        "free": {},
    }
    for name, grammar in cases.items():
        params = SamplingParams(
            max_new_tokens=60, temperature=temperature, sampling_seed=3, **grammar
        )
        server.add(name, [10, 20, 30], 60, params)
    run(server)
    found = {name: text_of(folder, server.tokens[name]) for name in cases}
    if server.finished["schema"].type == "stop":
        answer = json.loads(found["schema"])
        assert set(answer) == {"a", "b"}
        assert answer["b"] in ("x", "y")
    assert re.fullmatch(r"[0-9]{3}-[a-f]{2}", found["regex"])
    assert server.finished["regex"].type == "stop"
    assert re.match(r"yes|no, [a-z]+", found["ebnf"])
    assert server.finished["free"].type == "length"


def test_grammar_survives_retraction(folder: Path) -> None:
    """The matcher has consumed what was generated; the request goes on as if it never left."""
    wide = InProcessServer(folder)
    tight = InProcessServer(folder, max_total_tokens=160)
    for server in (wide, tight):
        for i in range(4):
            params = SamplingParams(max_new_tokens=70, temperature=0, regex=r"([a-z]{4} )+")
            server.add(f"r{i}", [i + 1] * 40, 70, params)
        run(server)
    assert tight.scheduler.planner.num_retracted > 0
    assert tight.tokens == wide.tokens


@pytest.mark.parametrize(
    "grammar, reason",
    [({"regex": "[0-9"}, "regex cannot be used"), ({"json_schema": "nonsense"}, "json_schema"),
     ({"ebnf": "root ::= ("}, "ebnf cannot be used")],
)  # fmt: skip
def test_bad_grammar_is_refused_and_others_go_on(
    folder: Path, grammar: dict[str, str], reason: str
) -> None:
    server = InProcessServer(folder)
    server.add("bad", [1, 2], 5, SamplingParams(max_new_tokens=5, **grammar))
    server.add("good", [1, 2], 5)
    run(server)
    assert server.finished["bad"].type == "abort"
    assert server.finished["bad"].status_code == 400
    assert reason in (server.finished["bad"].message or "")
    assert len(server.tokens["good"]) == 5
