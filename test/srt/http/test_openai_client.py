"""OpenAI's own Python client against the embedded model, with one stage and with two."""

from __future__ import annotations

import json
import re
from typing import Literal

import httpx
import openai
import pydantic
import pytest

from support.server_process import assert_pools_empty, server_process

pytestmark = pytest.mark.slow

STORY = "Once upon a time"
MESSAGES = [{"role": "user", "content": "Tell me a story about a cat."}]
GREEDY = {"model": "tiny-hybrid", "temperature": 0}


@pytest.fixture(scope="module", params=[1, 2], ids=["pp1", "pp2"])
def server(request):
    flags = ("--device", "cpu", "--pp-size", str(request.param), "--max-total-tokens", "32768")
    tools = ("--tool-call-parser", "qwen", "--reasoning-parser", "qwen3", "--enable-metrics")
    check = {"SGLANG_CHECK_MEMORY": "1"}
    with server_process("sglang.launch_server", "tiny-hybrid", *flags, *tools, **check) as it:
        it.wait_ready(60)
        yield it


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(api_key="none", base_url=f"{server.url}/v1", max_retries=0, timeout=60)


@pytest.fixture(autouse=True)
def pools_are_empty_afterwards(server):
    yield
    assert_pools_empty(server.url)


def complete(client, **options):
    return client.completions.create(**{**GREEDY, "prompt": STORY, "max_tokens": 24, **options})


def chat(client, **options):
    return client.chat.completions.create(
        **{**GREEDY, "messages": MESSAGES, "max_tokens": 24, **options}
    )


def test_models(client):
    (model,) = client.models.list().data
    assert model.id == "tiny-hybrid" == client.models.retrieve(model.id).id
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("another")


def test_completion_goes_on_with_the_text(client):
    answer = complete(client)
    choice = answer.choices[0]
    assert answer.object == "text_completion" and answer.id.startswith("cmpl-")
    assert choice.finish_reason in ("stop", "length") and choice.text
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert complete(client).choices[0].text == choice.text


def test_completions_of_several_prompts_equal_each_alone(client):
    prompts = [STORY, "The dog", "A cat is"]
    together = complete(client, prompt=prompts)
    alone = [complete(client, prompt=prompt).choices[0].text for prompt in prompts]
    assert [choice.text for choice in together.choices] == alone
    assert [choice.index for choice in together.choices] == [0, 1, 2]


def test_prompt_of_ids_equals_the_prompt_of_text(client, server):
    body = {"prompt": STORY, "add_special_tokens": False}
    ids = httpx.post(f"{server.url}/tokenize", json=body).json()["tokens"]
    back = httpx.post(f"{server.url}/detokenize", json={"tokens": ids}).json()["text"]
    assert back == STORY
    assert complete(client, prompt=ids).choices[0].text == complete(client).choices[0].text


def test_echo_and_logprobs(client):
    choice = complete(client, echo=True, logprobs=2, max_tokens=4).choices[0]
    table = choice.logprobs
    assert choice.text.startswith(STORY) and "".join(table.tokens) == choice.text
    assert table.token_logprobs[0] is None and max(table.token_logprobs[1:]) <= 0
    assert [
        choice.text[start:].startswith(token)
        for start, token in zip(table.text_offset, table.tokens, strict=True)
    ] == [True] * len(table.tokens)
    # Greedy: each output token is the likeliest of its alternatives.
    for token, top in zip(table.tokens[-4:], table.top_logprobs[-4:], strict=True):
        assert max(top, key=top.get) == token


@pytest.mark.parametrize("kind", ["chat", "completion"])
def test_stream_joins_to_the_whole_answer_and_counts_the_same(client, kind):
    create = chat if kind == "chat" else complete
    whole = create(client)
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = list(create(client, stream=True, stream_options=options))
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    if kind == "chat":
        text = "".join(choice.delta.content or "" for choice in choices)
        assert text == whole.choices[0].message.content
        assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    else:
        assert "".join(choice.text for choice in choices) == whole.choices[0].text
        assert {chunk.object for chunk in chunks} == {"text_completion"}
    assert len({chunk.id for chunk in chunks}) == 1
    assert [c.finish_reason for c in choices if c.finish_reason] == [whole.choices[0].finish_reason]
    counts = [chunk.usage.completion_tokens for chunk in chunks]
    assert counts == sorted(counts) and counts[-1] == whole.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens


def test_stop_string_ends_stream_and_answer_alike(client):
    text = complete(client).choices[0].text
    stop = text[6:9]
    expected = text[: text.index(stop)]
    whole = complete(client, stop=[stop]).choices[0]
    streamed = complete(client, stop=[stop], stream=True)
    assert whole.text == expected and whole.finish_reason == "stop"
    assert "".join(chunk.choices[0].text for chunk in streamed) == expected


def test_n_outputs_differ_and_the_seed_repeats_them(client):
    options = {"n": 3, "seed": 7, "temperature": 1.0}
    first, second = (
        [choice.message.content for choice in chat(client, **options).choices] for _ in range(2)
    )
    assert first == second and len(set(first)) > 1
    chunks = chat(client, **options, stream=True)
    texts = ["", "", ""]
    for chunk in chunks:
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert texts == first


def test_penalties_and_bias_change_the_choice(client, server):
    body = {"prompt": " the", "add_special_tokens": False}
    (token, *_) = httpx.post(f"{server.url}/tokenize", json=body).json()["tokens"]
    forced = complete(client, logit_bias={str(token): 100}, max_tokens=3)
    assert forced.choices[0].text.split() == ["the"] * 3
    options = {"max_tokens": 40, "extra_body": {"ignore_eos": True}}
    plain = complete(client, **options).choices[0].text
    penalised = complete(client, **options, frequency_penalty=2.0, presence_penalty=2.0)
    assert penalised.choices[0].text != plain


def test_chat_logprobs_have_one_entry_a_token(client):
    answer = chat(client, logprobs=True, top_logprobs=2, max_tokens=5)
    entries = answer.choices[0].logprobs.content
    assert len(entries) == answer.usage.completion_tokens
    assert all(entry.token == entry.top_logprobs[0].token for entry in entries)


def test_json_object_is_an_object(client):
    answer = chat(client, response_format={"type": "json_object"}, max_tokens=200, logit_bias={})
    choice = answer.choices[0]
    if choice.finish_reason == "stop":  # a model this small may not find the end
        assert isinstance(json.loads(choice.message.content), dict)
    assert choice.message.content.lstrip().startswith("{")


def test_structured_output_with_a_pydantic_model(client):
    class Side(pydantic.BaseModel):
        side: Literal["left", "right"]

    class Verdict(pydantic.BaseModel):
        sure: bool
        where: Side

    answer = client.chat.completions.parse(
        **GREEDY, messages=MESSAGES, max_tokens=300, response_format=Verdict
    )
    assert isinstance(answer.choices[0].message.parsed, Verdict)


@pytest.mark.parametrize(
    ("extra", "pattern"),
    [
        ({"regex": "(yes|no), [0-9]{3}"}, r"(yes|no), \d{3}"),
        ({"ebnf": 'root ::= "a" ("b" | "c") "d"'}, "a[bc]d"),
    ],
)
def test_regex_and_grammar(client, extra, pattern):
    answer = chat(client, extra_body=extra, max_tokens=40).choices[0]
    assert re.fullmatch(pattern, answer.message.content) and answer.finish_reason == "stop"


class Day(pydantic.BaseModel):
    name: Literal["Mon", "Tue"]


class Plan(pydantic.BaseModel):
    """Plan a day."""

    day: Day


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "Plan"}}])
def test_demanded_tool_call_with_a_nested_model(client, choice, stream):
    tools = [openai.pydantic_function_tool(Plan)]
    options = {"tools": tools, "tool_choice": choice, "max_tokens": 100}
    if stream:
        parts = [
            chunk.choices[0].delta.tool_calls
            for chunk in chat(client, **options, stream=True)
            if chunk.choices[0].delta.tool_calls
        ]
        (call,) = (part[0].function for part in parts)
    else:
        answer = chat(client, **options).choices[0]
        call = answer.message.tool_calls[0].function
        assert answer.finish_reason == "tool_calls"
    assert call.name == "Plan" and Plan.model_validate_json(call.arguments)


def test_tools_that_may_be_left_alone(client):
    tools = [openai.pydantic_function_tool(Plan)]
    assert chat(client, tools=tools, tool_choice="none").choices[0].message.content
    assert chat(client, tools=tools).choices[0].finish_reason


def test_reasoning_is_told_apart(client):
    """The prompt opens the reasoning, so that all this model says belongs to it."""
    template = {"continue_final_message": True}
    messages = [*MESSAGES, {"role": "assistant", "content": "<think>\n"}]
    answer = chat(client, messages=messages, extra_body=template).choices[0].message
    assert answer.reasoning_content and not answer.content
    off = {**template, "separate_reasoning": False}
    whole = chat(client, messages=messages, extra_body=off).choices[0].message
    assert whole.content.strip() == answer.reasoning_content


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"suffix": "end"}, "suffix"),
        ({"best_of": 4}, "best_of"),
        ({"n": 5_000_000}, "n"),
        ({"logprobs": 10**6}, "logprobs"),
        ({"max_tokens": 10**7}, "max_tokens"),
        ({"prompt": [10**6]}, "prompt"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"extra_body": {"stop_token_ids": [10**6]}}, "stop_token_ids"),
        ({"extra_body": {"regex": "(unclosed"}}, None),
        ({"extra_body": {"surprise": 1}}, "surprise"),
    ],
)
def test_refusals_name_the_field_and_the_next_request_is_served(client, options, param):
    with pytest.raises(openai.BadRequestError) as caught:
        complete(client, **options)
    assert caught.value.param == param and caught.value.type == "invalid_request_error"
    assert complete(client, max_tokens=1).choices
