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

    Raises RequestError for a `tool_choice` that would need constrained decoding.
    """
    choice = request.tool_choice
    if choice not in (None, "auto", "none"):
        raise RequestError(
            "tool_choice must be auto or none: forcing a call is not supported by this server",
            param="tool_choice",
        )
    if choice == "none" or not request.tools:
        return {}
    return {tool.function.name: tool.function.parameters or {} for tool in request.tools}


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
