"""OpenAI's API through OpenAI's own client, over the fake scheduler that echoes the prompt."""

from __future__ import annotations

import contextlib
import json

import openai
import pytest

from sglang.srt.entrypoints.openai.chat_prompt import forced_call_schema
from sglang.srt.entrypoints.openai.protocol import (
    ChatCompletionRequest,
    parse_body,
)
from support.byte_tokenizer import make_tokenizer
from support.http_app import serving
from unit.entrypoints.test_native_api import run

USER = [{"role": "user", "content": "héllo 🙂"}]
PROMPT = "<|im_start|>user\nhéllo 🙂<|im_end|>\n<|im_start|>assistant\n"
VISIBLE = PROMPT.replace("<|im_start|>", "").replace("<|im_end|>", "")


@contextlib.asynccontextmanager
async def client_of(**options):
    async with serving(**options) as (http_client, _, scheduler):
        client = openai.AsyncOpenAI(
            api_key="none", base_url="http://test/v1", http_client=http_client, max_retries=0
        )
        yield client, scheduler


def call(function, **options):
    async def inner():
        async with client_of(**options) as (client, _):
            return await function(client)

    return run(inner())


async def chat(client, **options):
    return await client.chat.completions.create(
        model="fake",
        messages=USER,
        **{"max_tokens": 200, "extra_body": {"ignore_eos": True}, **options},
    )


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Köln"}}</tool_call>'


async def ask_with_tools(client, **options):
    """The echo answers with the prompt's own tool call."""
    return await client.chat.completions.create(
        model="fake",
        messages=[{"role": "user", "content": "<think>why</think>Look: " + CALL}],
        tools=[WEATHER],
        stop=["assistant"],
        max_tokens=400,
        **options,
    )


def test_tool_call_and_reasoning_streamed_or_not():
    flags = {
        "tool_call_parser": "qwen",
        "reasoning_parser": "qwen3",
        "tokenizer": make_tokenizer(chat_template="{{ messages[0].content }}"),
    }
    choice = call(ask_with_tools, **flags).choices[0]
    assert choice.finish_reason in ("tool_calls", "length")
    message = choice.message
    assert (message.reasoning_content, message.content[:5]) == ("why", "Look:")
    assert message.tool_calls[0].function.name == "get_weather"
    assert json.loads(message.tool_calls[0].function.arguments) == {"city": "Köln"}

    async def streamed(client):
        return await collect(await ask_with_tools(client, stream=True))

    chunks = [chunk.choices[0] for chunk in call(streamed, **flags)]
    calls = [c for chunk in chunks for c in chunk.delta.tool_calls or []]
    assert [c.function.arguments for c in calls] == [
        c.function.arguments for c in message.tool_calls
    ]
    assert "".join(chunk.delta.content or "" for chunk in chunks) == message.content
    assert chunks[-1].finish_reason == choice.finish_reason


def test_former_tool_calls_reach_the_template_as_objects():
    template = "{{ messages[1].tool_calls[0].function.arguments.city }}{{ tools[0].type }}"

    async def function(client):
        former = {"id": "1", "type": "function", "function": {"name": "get_weather"}}
        former["function"]["arguments"] = '{"city": "Köln"}'
        messages = [*USER, {"role": "assistant", "tool_calls": [former]}]
        return await client.chat.completions.create(
            model="fake", messages=messages, tools=[WEATHER], max_tokens=13
        )

    flags = {"tool_call_parser": "hermes", "tokenizer": make_tokenizer(chat_template=template)}
    assert call(function, **flags).choices[0].message.content == "Kölnfunction"


def test_response_format_reaches_the_scheduler_as_a_schema():
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    forms = [
        {"type": "json_object"},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
        {"type": "text"},
    ]

    async def function():
        async with client_of() as (client, scheduler):
            for form in forms:
                await chat(client, max_tokens=1, response_format=form)
            await chat(client, max_tokens=1, extra_body={"regex": "a+"})
            return [m.sampling_params for m in scheduler.received if hasattr(m, "input_ids")][1:]

    sent = run(function())
    assert [json.loads(params.json_schema or "0") for params in sent[:3]] == [
        {"type": "object"},
        schema,
        0,
    ]
    assert sent[3].regex == "a+"


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "get_weather"}}]
)
def test_demanded_call_is_constrained_and_parsed(choice):
    """The echo answers with the prompt, which here is the call that a grammar would allow."""
    text = '{"name": "get_weather", "arguments": {"city": "Köln"}}'
    flags = {
        "tool_call_parser": "qwen",
        "tokenizer": make_tokenizer(chat_template="{{ messages[0].content }}"),
    }

    async def function(client, **options):
        return await client.chat.completions.create(
            model="fake",
            messages=[{"role": "user", "content": text}],
            tools=[WEATHER],
            tool_choice=choice,
            max_tokens=len(text.encode()),
            **options,
        )

    message = call(function, **flags).choices[0].message
    assert message.content is None
    assert json.loads(message.tool_calls[0].function.arguments) == {"city": "Köln"}

    async def streamed(client):
        return await collect(await function(client, stream=True))

    deltas = [chunk.choices[0].delta for chunk in call(streamed, **flags)]
    assert [d.tool_calls[0].function.name for d in deltas if d.tool_calls] == ["get_weather"]


async def collect(stream):
    return [chunk async for chunk in stream]


def test_chat_answer_has_openais_fields():
    answer = call(lambda c: chat(c, max_tokens=5))
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-") and answer.created > 1e9 and answer.model == "fake"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 5
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 5
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


def test_end_token_of_the_tokenizer_stops_a_chat():
    answer = call(lambda c: chat(c, extra_body={}))
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].message.content == "user\nhéllo 🙂"


@pytest.mark.parametrize("num", [1, 3])
@pytest.mark.parametrize("stop", [None, "assis"])
def test_chat_stream_joins_to_the_unstreamed_text(num, stop):
    whole = call(lambda c: chat(c, n=num, max_tokens=70, stop=stop))

    async def streamed(client):
        return await collect(
            await chat(
                client,
                n=num,
                max_tokens=70,
                stop=stop,
                stream=True,
                stream_options={"include_usage": True},
            )
        )

    chunks = call(streamed)
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[-1].choices == [] and chunks[-1].usage == whole.usage
    for choice in whole.choices:
        mine = [c.choices[0] for c in chunks[:-1] if c.choices[0].index == choice.index]
        assert mine[0].delta.role == "assistant"
        assert "".join(c.delta.content or "" for c in mine) == choice.message.content
        assert [c.finish_reason for c in mine if c.finish_reason] == [choice.finish_reason]
    assert whole.choices[0].finish_reason == ("stop" if stop else "length")


def test_chat_logprobs():
    answer = call(lambda c: chat(c, max_tokens=3, logprobs=True, top_logprobs=2))
    content = answer.choices[0].logprobs.content
    assert len(content) == 3
    assert content[1].logprob == -0.25 and bytes(content[1].bytes) == b"u"
    assert len(content[1].top_logprobs) == 2


def test_chat_stream_logprobs_have_one_entry_a_token():
    async def streamed(client):
        return await collect(await chat(client, max_tokens=20, logprobs=True, stream=True))

    chunks = call(streamed)
    entries = [
        entry
        for chunk in chunks
        if chunk.choices[0].logprobs
        for entry in chunk.choices[0].logprobs.content
    ]
    assert len(entries) == 20


def test_continue_final_message_goes_on_inside_it():
    async def function(client):
        messages = [*USER, {"role": "assistant", "content": "so far"}]
        return await client.chat.completions.create(
            model="fake",
            messages=messages,
            max_tokens=1,
            extra_body={"continue_final_message": True},
        )

    answer = call(function)
    assert answer.usage.prompt_tokens == len(VISIBLE.encode()) + 3 + len("so far")


def test_content_parts_of_text_are_joined():
    async def function(client):
        parts = [{"type": "text", "text": "hé"}, {"type": "text", "text": "llo 🙂"}]
        return await client.chat.completions.create(
            model="fake", messages=[{"role": "user", "content": parts}], max_tokens=1
        )

    assert call(function).usage == call(lambda c: chat(c, max_tokens=1)).usage


def test_completion_answer_and_defaults():
    async def function(client):
        return await client.completions.create(model="fake", prompt="héllo, this is long enough")

    answer = call(function)
    assert (answer.object, answer.usage.completion_tokens) == ("text_completion", 16)
    assert answer.choices[0].text == "héllo, this is long enough"[:15]


def test_completion_of_several_prompts_times_n():
    async def function(client):
        return await client.completions.create(
            model="fake", prompt=["ab", "cd"], n=2, max_tokens=2, seed=1
        )

    answer = call(function)
    assert [(c.index, c.text) for c in answer.choices] == [
        (0, "ab"),
        (1, "ab"),
        (2, "cd"),
        (3, "cd"),
    ]
    assert answer.usage.prompt_tokens == 4 and answer.usage.completion_tokens == 8


def test_completion_of_token_ids_streams():
    async def function(client):
        stream = await client.completions.create(
            model="fake", prompt=[65, 66, 67], max_tokens=6, stream=True
        )
        return await collect(stream)

    chunks = call(function)
    assert chunks[-1].choices[0].finish_reason == "length"
    assert len("".join(chunk.choices[0].text for chunk in chunks)) == 6


@pytest.mark.parametrize("max_tokens", [0, 2])
def test_echo_with_logprobs_scores_the_prompt(max_tokens):
    async def function(client):
        return await client.completions.create(
            model="fake", prompt="abc", echo=True, logprobs=1, max_tokens=max_tokens
        )

    choice = call(function).choices[0]
    assert choice.text == "abc" + "ab"[:max_tokens]
    assert choice.logprobs.tokens == list("abcab"[: 3 + max_tokens])
    assert choice.logprobs.token_logprobs[:2] == [None, -0.5]
    assert choice.logprobs.text_offset == list(range(3 + max_tokens))
    assert choice.logprobs.top_logprobs[0] is None


def test_only_one_call_where_parallel_ones_are_off():
    async def function(client):
        messages = [{"role": "user", "content": CALL + CALL}]
        options = {"tools": [WEATHER], "stop": ["assistant"], "max_tokens": 300}
        counts = []
        for parallel in (True, False):
            answer = await client.chat.completions.create(
                model="fake", messages=messages, parallel_tool_calls=parallel, **options
            )
            counts.append(len(answer.choices[0].message.tool_calls))
        return counts

    assert call(function, tool_call_parser="qwen") == [2, 1]


def test_allowed_tools_leave_the_others_out():
    async def function(client):
        other = {"type": "function", "function": {"name": "other"}}
        allowed = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "other"}}]}
        return await client.chat.completions.create(
            model="fake",
            messages=[{"role": "user", "content": CALL}],
            tools=[WEATHER, other],
            tool_choice={"type": "allowed_tools", "allowed_tools": allowed},
            stop=["assistant"],
            max_tokens=400,
        )

    message = call(function, tool_call_parser="qwen").choices[0].message
    assert message.tool_calls is None and "get_weather" in message.content


def test_references_of_a_demanded_calls_schema_hold():
    """A tool made from nested pydantic models refers to `#/$defs` of its own root."""
    nested = {"$defs": {"Day": {"enum": ["Mon"]}}, "properties": {"day": {"$ref": "#/$defs/Day"}}}
    tools = [
        {"type": "function", "function": {"name": name, "parameters": nested}} for name in "ab"
    ]
    for given, place in ((tools[:1], "#"), (tools, "#/anyOf/0")):
        body = {"messages": USER, "tools": given, "tool_choice": "required"}
        schema = json.loads(forced_call_schema(parse_body(body, ChatCompletionRequest)))
        call_schema = schema if place == "#" else schema["anyOf"][0]
        arguments = call_schema["properties"]["arguments"]
        expected = f"{place}/properties/arguments/$defs/Day"
        assert arguments["properties"]["day"]["$ref"] == expected
