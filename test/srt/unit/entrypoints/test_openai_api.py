"""OpenAI's API through OpenAI's own client, over the fake scheduler that echoes the prompt."""

from __future__ import annotations

import contextlib
import json

import httpx
import openai
import pytest

from support.byte_tokenizer import make_tokenizer
from support.fake_scheduler import FakeScheduler
from support.http_app import events, serving
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


BAD_CHAT = [
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "image_url"),
    ({"messages": USER, "tools": [{"type": "function"}]}, "tools"),
    ({"messages": USER, "tools": [{"function": {"name": "f"}}]}, "--tool-call-parser"),
    ({"messages": USER, "tool_choice": "required"}, "tool_choice"),
    ({"messages": USER, "response_format": {"type": "json_object"}}, "response_format"),
    ({"messages": USER, "top_logprobs": 10**6, "logprobs": True}, "top_logprobs"),
    ({"messages": USER, "top_logprobs": 3}, "logprobs"),
    ({"messages": USER, "logit_bias": {"999999": 1}}, "logit_bias"),
    ({"messages": USER, "n": 5_000_000}, "n must"),
    ({"messages": USER, "max_tokens": -1}, "max_new_tokens"),
    ({"messages": USER, "max_completion_tokens": 5000}, "512"),
    ({"messages": USER, "temperature": "hot"}, "temperature"),
    ({"messages": USER, "temperature": 1e9}, "temperature"),
    ({"messages": USER, "surprise": 1}, "surprise"),
    ({"messages": USER, "stop_token_ids": [-5]}, "stop_token_ids"),
    ({"messages": USER, "chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    ({"messages": USER, "seed": 2**80}, "seed"),
    ({"messages": [{"role": "user", "content": "x" * 600}]}, "512"),
]
BAD_COMPLETION = [
    ({}, "prompt"),
    ({"prompt": ""}, "empty"),
    ({"prompt": []}, "empty"),
    ({"prompt": ["a", 1]}, "prompt"),
    ({"prompt": [[1], []]}, "empty"),
    ({"prompt": [10**6]}, "input_ids"),
    ({"prompt": "a", "suffix": "b"}, "suffix"),
    ({"prompt": "a", "best_of": 3}, "best_of"),
    ({"prompt": "a", "logprobs": 10**6}, "top_logprobs"),
    ({"prompt": "a", "logprobs": -1}, "top_logprobs"),
    ({"prompt": "a", "stream_options": 3}, "stream_options"),
]


def test_bad_input_is_400_in_openais_shape():
    async def function():
        async with client_of() as (client, _):
            http_client: httpx.AsyncClient = client._client
            cases = [("/v1/chat/completions", *case) for case in BAD_CHAT]
            cases += [("/v1/completions", *case) for case in BAD_COMPLETION]
            for path, body, word in cases:
                for extra in ({}, {"stream": True}):
                    response = await http_client.post(path, json={**body, **extra})
                    assert response.status_code == 400, (body, response.text)
                    error = response.json()["error"]
                    assert set(error) == {"message", "type", "param", "code"}
                    assert error["type"] == "invalid_request_error"
                    assert word in error["message"], (body, error)

    run(function())


def test_harmless_and_null_fields_are_accepted():
    extra = {"tools": None, "response_format": {"type": "text"}, "user": "u", "ignore_eos": True}
    assert call(lambda c: chat(c, max_tokens=1, extra_body=extra, tool_choice="none")).choices


def test_failure_in_the_middle_of_a_stream_is_an_error_event():
    async def function():
        scheduler = FakeScheduler(token_delay=0.01)
        async with client_of(scheduler=scheduler) as (client, _):

            async def kill(_request):
                scheduler.die()

            http_client: httpx.AsyncClient = client._client
            body = {"prompt": "abc", "max_tokens": 500, "stream": True}
            post = http_client.post("/v1/completions", json=body)
            import asyncio

            asyncio.get_running_loop().call_later(0.3, scheduler.die)
            return await post

    payloads = events(run(function()))
    assert payloads[-1] == "[DONE]"
    assert "stage 0" in json.loads(payloads[-2])["error"]["message"]


def test_errors_raise_openais_exceptions():
    async def refused(client):
        with pytest.raises(openai.BadRequestError) as caught:
            await chat(client, temperature=-1)
        assert caught.value.param == "temperature"

    call(refused)

    async def unauthorised(client):
        with pytest.raises(openai.AuthenticationError):
            await chat(client)

    call(unauthorised, api_key="secret")
    assert call(lambda c: c.models.list(), api_key="none").data[0].id == "fake"


def test_queue_full_raises_openais_503():
    async def overloaded(client):
        with pytest.raises(openai.InternalServerError) as caught:
            await chat(client, n=5)
        assert caught.value.status_code == 503

    call(overloaded, scheduler=FakeScheduler(max_queued=0, token_delay=0.01))
