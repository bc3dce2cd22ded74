"""What OpenAI's API refuses, and how failures look to OpenAI's own client."""

from __future__ import annotations

import json
import typing

import httpx
import openai
import pytest
from openai.types import completion_create_params as completion_params
from openai.types.chat import completion_create_params as chat_params

from sglang.srt.entrypoints.openai.protocol import (
    ChatCompletionRequest,
    CompletionRequest,
    check_other_fields,
)
from support.fake_scheduler import FakeScheduler
from support.http_app import events
from unit.entrypoints.test_native_api import run
from unit.entrypoints.test_openai_api import USER, call, chat, client_of

BAD_CHAT = [
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "image_url"),
    ({"messages": USER, "tools": [{"type": "function"}]}, "tools"),
    ({"messages": USER, "tools": [{"function": {"name": "f"}}]}, "--tool-call-parser"),
    ({"messages": USER, "tool_choice": "required"}, "tool_choice"),
    ({"messages": USER, "response_format": {"type": "xml"}}, "response_format"),
    ({"messages": USER, "response_format": {"type": "json_schema"}}, "response_format"),
    ({"messages": USER, "regex": "a", "ebnf": "b"}, "only one"),
    ({"messages": USER, "top_logprobs": 10**6, "logprobs": True}, "top_logprobs"),
    ({"messages": USER, "top_logprobs": 3}, "logprobs"),
    ({"messages": USER, "logit_bias": {"999999": 1}}, "logit_bias"),
    ({"messages": USER, "n": 5_000_000}, "n must"),
    ({"messages": USER, "max_tokens": -1}, "max_tokens"),
    ({"messages": USER, "max_completion_tokens": -1}, "max_completion_tokens"),
    ({"messages": USER, "max_completion_tokens": 5000}, "512"),
    ({"messages": USER, "min_tokens": -1}, "min_tokens"),
    ({"messages": USER, "stop": [""]}, "stop"),
    ({"messages": USER, "stream_options": {"include_usage": 3}}, "stream_options"),
    ({"messages": USER, "tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools"),
    ({"messages": USER, "tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
    ({"messages": USER, "function_call": {"name": "f"}}, "function_call"),
    ({"messages": [{"role": "assistant", "function_call": {"name": "f"}}]}, "function_call"),
    ({"messages": USER, "temperature": "hot"}, "temperature"),
    ({"messages": USER, "temperature": 1e9}, "temperature"),
    ({"messages": USER, "surprise": 1}, "surprise"),
    ({"messages": USER, "stop_token_ids": [-5]}, "stop_token_ids"),
    ({"messages": USER, "chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    ({"messages": USER, "seed": 2**80}, "seed"),
    ({"messages": USER, "seed": 2**64 - 1}, "seed"),
    ({"messages": [{"role": "user", "content": "x" * 600}]}, "512"),
]
BAD_COMPLETION = [
    ({}, "prompt"),
    ({"prompt": ""}, "empty"),
    ({"prompt": []}, "empty"),
    ({"prompt": ["a", 1]}, "prompt"),
    ({"prompt": [[1], []]}, "empty"),
    ({"prompt": [10**6]}, "prompt"),
    ({"prompt": "a", "suffix": "b"}, "suffix"),
    ({"prompt": "a", "best_of": 3}, "best_of"),
    ({"prompt": "a", "logprobs": 10**6}, "logprobs"),
    ({"prompt": "a", "logprobs": -1}, "logprobs"),
    ({"prompt": "a", "stream_options": 3}, "stream_options"),
]


NAMELESS = ("prompt",)  # the field is not there


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
                    param = error["param"]
                    assert param is None or param.split(".")[0] in body, (body, error)
                    assert param or word in NAMELESS, (body, error)

    run(function())


def test_harmless_and_null_fields_are_accepted():
    extra = {"tools": None, "response_format": {"type": "text"}, "user": "u", "ignore_eos": True}
    assert call(lambda c: chat(c, max_tokens=1, extra_body=extra, tool_choice="none")).choices


@pytest.mark.parametrize(
    ("schema", "request_type"),
    [
        (chat_params.CompletionCreateParamsBase, ChatCompletionRequest),
        (completion_params.CompletionCreateParamsBase, CompletionRequest),
    ],
)
def test_every_field_of_openais_schema_is_known(schema, request_type):
    """Null asks for nothing, so it is accepted wherever the field itself is refused."""
    others = set(typing.get_type_hints(schema)) - set(request_type.__struct_fields__)
    check_other_fields(dict.fromkeys(others))


def test_stream_options_without_a_stream_are_refused():
    async def refused(client):
        with pytest.raises(openai.BadRequestError) as caught:
            await chat(client, extra_body={"stream_options": {"include_usage": True}})
        assert caught.value.param == "stream_options"

    call(refused)


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
