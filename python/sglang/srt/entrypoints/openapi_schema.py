"""The OpenAPI description of the bodies, made from the types that parse them.

The serving modules check bodies themselves, so that errors have OpenAI's shape; FastAPI learns here
what they take. `/openapi.json` is what generated clients and API fuzzers read.
"""

from __future__ import annotations

import functools
from typing import Any

import msgspec
from fastapi import FastAPI

from sglang.srt.entrypoints.admin_api import AbortBody, DetokenizeBody, TokenizeBody
from sglang.srt.entrypoints.native_protocol import MAX_N, GenerateBody
from sglang.srt.entrypoints.openai.protocol import (
    MAX_CHAT_TOP_LOGPROBS,
    ChatCompletionRequest,
    CompletionRequest,
)
from sglang.srt.managers.tokenizer_manager import MAX_RID_CHARS, MAX_TOP_LOGPROBS
from sglang.srt.sampling.sampling_params import (
    MAX_STOP_CHARS,
    MAX_STOP_STRINGS,
    NUMBER_BOUNDS,
    SamplingParams,
)

BODIES: dict[str, type[msgspec.Struct]] = {
    "/generate": GenerateBody,
    "/v1/completions": CompletionRequest,
    "/v1/chat/completions": ChatCompletionRequest,
    "/tokenize": TokenizeBody,
    "/detokenize": DetokenizeBody,
    "/abort_request": AbortBody,
}
_REF = "#/components/schemas/{name}"
_ERROR = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
            "required": ["message"],
        }
    },
    "required": ["error"],
}
_TEXT_PART = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
}
_FUNCTION_CHOICE = {
    "type": "object",
    "properties": {
        "type": {"const": "function"},
        "function": {"type": "object", "properties": {"name": {"type": "string"}}},
    },
    "required": ["type", "function"],
}
_STOP = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_CHARS}
_BIASES = {"type": "object", "additionalProperties": {"type": "number"}}
# Fields that are parsed by hand, and those accepted only while they ask for nothing.
_UNTYPED: dict[str, Any] = {
    "audio": {"type": "null"},
    "function_call": {"type": "null"},
    "json_schema": {"anyOf": [{"type": "string"}, {"type": "object"}, {"type": "null"}]},
    "logit_bias": {"anyOf": [_BIASES, {"type": "null"}]},
    "stop": {
        "anyOf": [
            _STOP,
            {"type": "array", "items": _STOP, "maxItems": MAX_STOP_STRINGS},
            {"type": "null"},
        ]
    },
    "tool_choice": {"anyOf": [{"enum": ["none", "auto", "required", None]}, _FUNCTION_CHOICE]},
}
_ID_LISTS = frozenset({"input_ids", "prompt", "stop_token_ids", "token_ids_logprob", "tokens"})
_MESSAGES = [{"role": "user", "content": "Tell me a story."}]
_SCHEMA = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
# A body or more for each route, shown by tools that read the description.
_EXAMPLES: dict[str, dict[str, Any]] = {
    "/generate": {
        "text": {"text": "Once upon a time", "sampling_params": {"max_new_tokens": 8}},
        "ids": {"input_ids": [[1, 2], [3]], "return_logprob": True, "top_logprobs_num": 2},
    },
    "/v1/completions": {
        "plain": {"prompt": "Once upon a time", "max_tokens": 8},
        "scored": {"prompt": ["a", "b"], "echo": True, "logprobs": 1, "max_tokens": 0},
    },
    "/v1/chat/completions": {
        "plain": {"messages": _MESSAGES, "max_tokens": 8},
        "stream": {
            "messages": _MESSAGES,
            "max_tokens": 8,
            "stream": True,
            "stream_options": {"include_usage": True},
        },
        "structured": {
            "messages": _MESSAGES,
            "max_tokens": 32,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": _SCHEMA},
            },
        },
    },
    "/tokenize": {"plain": {"prompt": "Once upon a time"}},
    "/detokenize": {"plain": {"tokens": [1, 2, 3]}},
    "/abort_request": {"plain": {"rid": "mine"}},
}
# Status codes of a refused request, with when it is.
_REFUSALS = {
    "400": "A field is malformed, out of its bounds or not supported; the message names it",
    "401": "The API key is missing or wrong",
    "413": "The body is too large",
    "415": "The content type is not JSON",
    "503": "The queue is full or the server is starting",
}


def describe_bodies(app: FastAPI) -> None:
    """Put the types of all bodies, and the shape of errors, into the application's OpenAPI."""
    make = app.openapi

    @functools.cache
    def openapi() -> dict[str, Any]:
        description = make()
        _, components = msgspec.json.schema_components(
            (*BODIES.values(), SamplingParams), ref_template=_REF
        )
        _add_bounds(components)
        components["Error"] = _ERROR
        description.setdefault("components", {}).setdefault("schemas", {}).update(components)
        for path, kind in BODIES.items():
            operation = description["paths"][path]["post"]
            schema = {"$ref": _REF.format(name=kind.__name__)}
            examples = {name: {"value": body} for name, body in _EXAMPLES[path].items()}
            content = {"application/json": {"schema": schema, "examples": examples}}
            operation["requestBody"] = {"required": True, "content": content}
            operation["responses"].update(_refusals())
        return description

    app.openapi = openapi  # type: ignore[method-assign]


def _refusals() -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": _REF.format(name="Error")}}}
    return {status: {"description": text, "content": content} for status, text in _REFUSALS.items()}


def _add_bounds(components: dict[str, Any]) -> None:
    """Bounds that are checked by code, not by type."""
    numbers: dict[str, tuple[float, float]] = {
        **{name: (low, high) for name, low, high in NUMBER_BOUNDS},
        "n": (1, MAX_N),
        "max_tokens": (0, 2**31 - 1),
        "max_completion_tokens": (0, 2**31 - 1),
        "max_new_tokens": (0, 2**31 - 1),
        "min_tokens": (0, 2**31 - 1),
        "seed": (-(2**63), 2**63 - 1),
        "sampling_seed": (-(2**63), 2**63 - 1),
        "logprobs": (0, MAX_TOP_LOGPROBS),
        "top_logprobs": (0, MAX_CHAT_TOP_LOGPROBS),
        "top_logprobs_num": (0, MAX_TOP_LOGPROBS),
        "logprob_start_len": (-1, 2**31 - 1),
    }
    for component in components.values():
        for name, field in component.get("properties", {}).items():
            for kind in field.get("anyOf", [field]):
                if kind.get("type") in ("integer", "number") and name in numbers:
                    kind["minimum"], kind["maximum"] = numbers[name]
                if kind.get("type") == "string" and name == "rid":
                    kind.update(minLength=1, maxLength=MAX_RID_CHARS)
                if kind.get("type") == "array" and name in _ID_LISTS:
                    _add_minimum(kind["items"])
            component["properties"][name] = _UNTYPED.get(name, field)
    messages = components["ChatCompletionRequest"]["properties"]["messages"]
    messages["minItems"] = 1
    for kind in components["ChatMessage"]["properties"]["content"]["anyOf"]:
        if kind.get("type") == "array":
            kind["items"] = _TEXT_PART
    params = components["GenerateBody"]["properties"]["sampling_params"]
    for kind in params["anyOf"]:
        if kind.get("type") == "object":
            kind.clear()
            kind["$ref"] = _REF.format(name="SamplingParams")


def _add_minimum(items: dict[str, Any]) -> None:
    """Token ids begin with 0; where they end depends on the model."""
    for kind in items.get("anyOf", [items]):
        if kind.get("type") == "integer":
            kind["minimum"] = 0
        elif kind.get("type") == "array":
            _add_minimum(kind["items"])
