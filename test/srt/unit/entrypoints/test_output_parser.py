"""Reasoning and tool calls come out the same however the text was cut."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang.srt.entrypoints.openai.output_parser import OutputParser, Parsed, parse_tool_call

TOOLS = {
    "get_weather": {
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    }
}
JSON_CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln"}}\n</tool_call>'
XML_CALL = (
    "<tool_call>\n<function=get_weather>\n<parameter=city>\n12\n</parameter>\n"
    "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>"
)
OUTPUTS = [
    "plain text\n",
    f"<think>\nhm, why\n</think>\n\nLet me see.\n{JSON_CALL}\n{XML_CALL}",
    "a < b <thin <tool_cal x",
    "<tool_call>not a call</tool_call> after",
    "<tool_call>cut off",
    "<think>never ends",
]


def parse(pieces: list[str], **options) -> tuple[str, str, list]:
    parser = OutputParser(TOOLS, parse_reasoning=True, **options)
    parsed: list[Parsed] = [p for piece in pieces for p in parser.push(piece)] + parser.finish()
    return (
        "".join(p.reasoning for p in parsed),
        "".join(p.content for p in parsed),
        [(p.call.name, json.loads(p.call.arguments)) for p in parsed if p.call],
    )


def test_reasoning_content_and_calls_are_told_apart():
    reasoning, content, calls = parse([OUTPUTS[1]])
    assert (reasoning, content) == ("hm, why", "Let me see.")
    assert calls == [
        ("get_weather", {"city": "Köln"}),
        ("get_weather", {"city": "12", "days": 3}),
    ]


@given(st.sampled_from(OUTPUTS), st.lists(st.integers(0, 300), max_size=8))
def test_cuts_change_nothing(text, cuts):
    bounds = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    pieces = [text[a:b] for a, b in itertools.pairwise(bounds)]
    assert parse(pieces) == parse([text])
    assert parse(list(text)) == parse([text])


@pytest.mark.parametrize("text", [OUTPUTS[0], OUTPUTS[2], OUTPUTS[4]])
def test_text_without_a_whole_tag_is_kept_as_it_is(text):
    assert parse([text]) == ("", text, [])


def test_prompt_that_opened_the_reasoning():
    assert parse(["why\n</think>\nbecause"], starts_in_reasoning=True) == ("why", "because", [])


def test_what_is_no_call_is_content():
    assert parse([OUTPUTS[3]])[1] == "<tool_call>not a call</tool_call>after"


@pytest.mark.parametrize(
    "block",
    ["", "{", "[]", '{"name": "rm"}', '{"name": ["get_weather"]}', "<function=rm></function>"],
)
def test_unknown_or_malformed_call_is_none(block):
    assert parse_tool_call(block, TOOLS) is None
