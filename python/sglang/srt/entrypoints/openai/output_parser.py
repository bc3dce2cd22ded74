"""A model's chat output to reasoning, content and tool calls. Pure, and the same for streams.

Tags: `<think>…</think>` (reasoning), `<tool_call>…</tool_call>` (one call each). A call is JSON,
`{"name": …, "arguments": {…}}` (Hermes, Qwen 2.5 and 3), or XML, `<function=NAME>` with
`<parameter=KEY>` blocks (Qwen 3 Coder, Qwen 3.5).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

Mode = Literal["reasoning", "content", "tool"]

THINK, END_THINK = "<think>", "</think>"
CALL, END_CALL = "<tool_call>", "</tool_call>"
_FUNCTION = re.compile(r"\s*<function=([^>]+)>(.*)</function>\s*", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>]+)>\n?(.*?)\n?</parameter>", re.DOTALL)


class ToolCall(NamedTuple):
    """A call as OpenAI has it: `arguments` is JSON text."""

    name: str
    arguments: str


class Parsed(NamedTuple):
    """One piece of output; exactly one of the fields says something."""

    reasoning: str = ""
    content: str = ""
    call: ToolCall | None = None


class OutputParser:
    """Takes text as it comes and gives out pieces. A tag that may be cut in two is waited for.

    `tools` maps the names that may be called to the JSON schema of their parameters; None turns
    calls off. What looks like a call but can't be parsed, or calls what does not exist, is content.
    White space next to a tag belongs to nothing.
    """

    def __init__(
        self,
        tools: Mapping[str, Mapping[str, Any]] | None,
        parse_reasoning: bool = False,
        starts_in_reasoning: bool = False,
    ) -> None:
        self._tools = tools
        self._parse_reasoning = parse_reasoning
        self._mode: Mode = "reasoning" if starts_in_reasoning else "content"
        self._buffer = ""
        self._space = ""  # white space that is given out only if text of its kind follows
        self._at_tag = True  # nothing but white space since the last tag or the start
        self._is_start = True

    def push(self, text: str) -> list[Parsed]:
        """Add text; returns the pieces that are certain."""
        self._buffer += text
        pieces: list[Parsed] = []
        while (found := self._find_tag()) is not None:
            start, tag = found
            before, self._buffer = self._buffer[:start], self._buffer[start + len(tag) :]
            self._emit(before, pieces)
            self._switch(tag)
        if self._mode != "tool":
            certain = len(self._buffer) - self._held_len()
            text, self._buffer = self._buffer[:certain], self._buffer[certain:]
            self._emit(text, pieces)
        return pieces

    def finish(self) -> list[Parsed]:
        """The end of the output: what was waited for did not come."""
        pieces: list[Parsed] = []
        text, self._buffer = self._buffer, ""
        if self._mode == "tool":
            pieces.append(Parsed(content=CALL + text))
        elif self._mode == "content" and not self._at_tag:
            self._emit(text, pieces)
            if self._space:
                pieces.append(Parsed(content=self._space))
        else:
            self._emit(text, pieces)
        return pieces

    def _tags(self) -> tuple[str, ...]:
        """Tags that end the present mode."""
        if self._mode == "reasoning":
            return (END_THINK,)
        if self._mode == "tool":
            return (END_CALL,)
        opening = (THINK,) if self._parse_reasoning and self._is_start else ()
        return opening + ((CALL,) if self._tools is not None else ())

    def _find_tag(self) -> tuple[int, str] | None:
        hits = [(self._buffer.find(tag), tag) for tag in self._tags()]
        return min((hit for hit in hits if hit[0] >= 0), default=None)

    def _held_len(self) -> int:
        """Length of the longest end of the buffer that could begin a tag."""
        for length in range(min(len(self._buffer), len(CALL)), 0, -1):
            tail = self._buffer[-length:]
            if any(tag.startswith(tail) for tag in self._tags()):
                return length
        return 0

    def _switch(self, tag: str) -> None:
        modes: dict[str, Mode] = {THINK: "reasoning", CALL: "tool"}
        self._mode = modes.get(tag, "content")
        self._space, self._at_tag, self._is_start = "", True, False

    def _emit(self, text: str, pieces: list[Parsed]) -> None:
        if self._mode == "tool":
            call = parse_tool_call(text, self._tools or {})
            pieces.append(Parsed(call=call) if call else Parsed(content=CALL + text + END_CALL))
            return
        text = self._space + text
        body = text.rstrip()
        self._space = text[len(body) :]
        # Without a tag before it, white space at the start is the model's own.
        if self._at_tag and not self._is_start:
            body = body.lstrip()
        if not body:
            return
        self._at_tag = self._is_start = False
        is_reasoning = self._mode == "reasoning"
        pieces.append(Parsed(reasoning=body) if is_reasoning else Parsed(content=body))


class ForcedCallParser:
    """Output that a grammar has made one bare JSON call: read when it is complete.

    Cut off by the length limit it is no call, and stays content.
    """

    def __init__(self, tools: Mapping[str, Mapping[str, Any]]) -> None:
        self._tools = tools
        self._text = ""

    def push(self, text: str) -> list[Parsed]:
        """Add text; nothing is certain before the end."""
        self._text += text
        return []

    def finish(self) -> list[Parsed]:
        """The call, or the text that failed to be one."""
        call = parse_tool_call(self._text, self._tools)
        if call is not None:
            return [Parsed(call=call)]
        return [Parsed(content=self._text)] if self._text else []


def parse_tool_call(block: str, tools: Mapping[str, Mapping[str, Any]]) -> ToolCall | None:
    """The inside of a `<tool_call>` as a call of one of `tools`; None when it is not one."""
    name: Any
    if (function := _FUNCTION.fullmatch(block)) is not None:
        name = function.group(1).strip()
        schema = tools.get(name, {})
        arguments: Any = {
            key.strip(): _typed(value, schema.get("properties", {}).get(key.strip(), {}))
            for key, value in _PARAMETER.findall(function.group(2))
        }
    else:
        try:
            call = json.loads(block)
            name, arguments = call["name"], call.get("arguments", {})
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
        if isinstance(arguments, str):
            return ToolCall(name, arguments) if name in tools else None
    if not isinstance(name, str) or name not in tools or not isinstance(arguments, dict):
        return None
    return ToolCall(name, json.dumps(arguments, ensure_ascii=False))


def _typed(value: str, schema: Any) -> Any:
    """An XML parameter by its schema: text when that is what the tool takes, JSON otherwise."""
    if isinstance(schema, dict) and schema.get("type") == "string":
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value
