"""A conversation to the prompt that the model's chat template makes of it."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from sglang.srt.entrypoints.openai.protocol import (
    ChatCompletionRequest,
    ChatMessage,
    message_text,
)
from sglang.srt.managers.request_state import RequestError
from sglang.srt.utils.hf_tokenizer import HfTokenizer, TokenizerError

_RESERVED = ("messages", "add_generation_prompt", "tools")
_ALLOWED_MODES = ("auto", "required")


def render_prompt(tokenizer: HfTokenizer, request: ChatCompletionRequest) -> str:
    """The prompt text.

    With `continue_final_message` it ends inside the last message, which the model goes on with.
    Raises RequestError for a conversation that the template refuses.
    """
    if not request.messages:
        raise RequestError("messages must not be empty", param="messages")
    messages = [_template_message(message) for message in request.messages]
    variables = dict(request.chat_template_kwargs or {})
    for name in _RESERVED:
        if name in variables:
            raise RequestError(
                f"chat_template_kwargs must not set {name}", param="chat_template_kwargs"
            )
    if request.reasoning_effort is not None:
        variables.setdefault("reasoning_effort", request.reasoning_effort)
    if active_tools(request):
        variables["tools"] = msgspec.to_builtins(request.tools)
    tail = _pop_final(messages) if request.continue_final_message else ""
    variables["add_generation_prompt"] = request.add_generation_prompt is not False or bool(tail)
    try:
        return tokenizer.render_chat(messages, **variables) + tail
    except TokenizerError as error:
        raise RequestError(str(error), param="messages") from None


def active_tools(request: ChatCompletionRequest) -> dict[str, dict[str, Any]]:
    """Names that may be called, with the schema of their parameters; empty: none may.

    Raises RequestError for a `tool_choice` that is malformed or names no tool.
    """
    tools = {tool.function.name: tool.function.parameters or {} for tool in request.tools or []}
    mode, names = _tool_choice(request)
    if mode == "none":
        return {}
    wanted = list(tools) if names is None else names
    missing = [name for name in wanted if name not in tools]
    if missing or (mode == "required" and not wanted):
        named = f", which has no {missing[0]!r}" if missing else ""
        raise RequestError(
            f"tool_choice must be none, auto, required or name one of tools{named}",
            param="tool_choice",
        )
    return {name: tools[name] for name in wanted}


def _tool_choice(request: ChatCompletionRequest) -> tuple[str, list[str] | None]:
    """`tool_choice` as (none, auto or required; the tools it names, None for all)."""
    choice = request.tool_choice
    if choice is None:
        return "auto", None
    if choice in ("none", "auto", "required"):
        return choice, None
    try:
        if choice["type"] == "function":
            return "required", [str(choice["function"]["name"])]
        if choice["type"] == "allowed_tools" and choice["allowed_tools"]["mode"] in _ALLOWED_MODES:
            allowed = choice["allowed_tools"]
            return allowed["mode"], [str(tool["function"]["name"]) for tool in allowed["tools"]]
    except (TypeError, KeyError, IndexError):
        pass
    raise RequestError(
        "tool_choice must be none, auto, required, a function or allowed_tools",
        param="tool_choice",
    )


def forced_call_schema(request: ChatCompletionRequest) -> str | None:
    """JSON schema of the call that `tool_choice` demands; None when calling is up to the model."""
    if _tool_choice(request)[0] != "required":
        return None
    tools = active_tools(request)
    calls = []
    for i, (name, parameters) in enumerate(tools.items()):
        place = "#/properties" if len(tools) == 1 else f"#/anyOf/{i}/properties"
        arguments = _moved(parameters, f"{place}/arguments") or {"type": "object"}
        calls.append(
            {
                "type": "object",
                "properties": {"name": {"const": name}, "arguments": arguments},
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
        )
    return json.dumps(calls[0] if len(calls) == 1 else {"anyOf": calls})


def _moved(schema: Any, place: str) -> Any:
    """A JSON schema whose references to its own root hold when that is at `place` of another."""
    if isinstance(schema, list):
        return [_moved(item, place) for item in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {key: _moved(value, place) for key, value in schema.items()}
    reference = schema.get("$ref")
    if isinstance(reference, str) and (reference == "#" or reference.startswith("#/")):
        moved["$ref"] = place + reference[1:]
    return moved


def _template_message(message: ChatMessage) -> dict[str, Any]:
    role = "system" if message.role == "developer" else message.role
    entry: dict[str, Any] = {"role": role, "content": message_text(message)}
    for name in ("name", "reasoning_content", "tool_call_id"):
        if (value := getattr(message, name)) is not None:
            entry[name] = value
    if message.tool_calls:
        entry["tool_calls"] = [_template_call(call) for call in message.tool_calls]
    return entry


def _template_call(call: dict[str, Any]) -> dict[str, Any]:
    """A former call with its arguments as an object, which is what templates expect."""
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise RequestError("tool_calls need a function with a name", param="messages")
    arguments = function.get("arguments", "{}")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            raise RequestError("arguments of tool_calls must be JSON", param="messages") from None
    return {**call, "function": {**function, "arguments": arguments}}


def _pop_final(messages: list[dict[str, Any]]) -> str:
    if messages[-1]["role"] != "assistant":
        raise RequestError(
            "continue_final_message needs an assistant message at the end",
            param="continue_final_message",
        )
    text: str = messages.pop()["content"]
    return text
