"""`/v1/chat/completions`."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import Any

import msgspec

from sglang.srt.entrypoints.native_protocol import vary_seed
from sglang.srt.entrypoints.openai.answers import (
    Envelope,
    expand_rids,
    finish_fields,
    submit,
    usage,
)
from sglang.srt.entrypoints.openai.chat_prompt import (
    active_tools,
    forced_call_schema,
    render_prompt,
)
from sglang.srt.entrypoints.openai.output_parser import (
    THINK,
    ForcedCallParser,
    OutputParser,
    Parsed,
)
from sglang.srt.entrypoints.openai.protocol import (
    MAX_CHAT_TOP_LOGPROBS,
    ChatCompletionRequest,
    StreamOptions,
    parse_body,
)
from sglang.srt.entrypoints.streaming import merge
from sglang.srt.managers.io_struct import TokenLogprobs
from sglang.srt.managers.request_state import Delta, GenerateInput, Generation, RequestError
from sglang.srt.managers.tokenizer_manager import TokenizerManager
from sglang.srt.utils.hf_tokenizer import HfTokenizer


@dataclasses.dataclass(frozen=True)
class ChatSettings:
    """What the server's flags say about chats."""

    model_name: str
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None


class _Call:
    """One parsed call: its inputs, and how to read and word its outputs."""

    def __init__(
        self, manager: TokenizerManager, body: dict[str, Any], settings: ChatSettings, kind: str
    ) -> None:
        self.request = parse_body(body, ChatCompletionRequest)
        self.tokenizer = manager.tokenizer
        self.envelope = Envelope("chatcmpl", kind, self.request.model or settings.model_name)
        self.num_per_prompt = self.request.n or 1
        has_limit = self.request.max_completion_tokens is not None
        limit_name = "max_completion_tokens" if has_limit else "max_tokens"
        self.names = {"text": "messages", "max_new_tokens": limit_name}
        self._settings = settings
        self._tools = active_tools(self.request)
        self._forced_schema = forced_call_schema(self.request)
        if self._tools and settings.tool_call_parser is None:
            raise RequestError("tools need a server with --tool-call-parser", param="tools")
        self._prompt = render_prompt(self.tokenizer, self.request)
        self.inputs = self._inputs()

    def _inputs(self) -> list[GenerateInput]:
        request = self.request
        num_top = request.top_logprobs or 0
        if not 0 <= num_top <= MAX_CHAT_TOP_LOGPROBS:
            raise RequestError(
                f"top_logprobs must be in [0, {MAX_CHAT_TOP_LOGPROBS}], got {num_top}",
                param="top_logprobs",
            )
        if num_top and not request.logprobs:
            raise RequestError("top_logprobs needs logprobs: true", param="top_logprobs")
        limit = request.max_completion_tokens
        params = request.sampling_params(request.max_tokens if limit is None else limit)
        if self._forced_schema is not None:
            if params.has_grammar:
                raise RequestError(
                    "tool_choice that demands a call and a response format exclude each other",
                    param="tool_choice",
                )
            params = msgspec.structs.replace(params, json_schema=self._forced_schema)
        inputs = [
            GenerateInput(
                vary_seed(params, j),
                text=self._prompt,
                return_logprob=bool(request.logprobs),
                top_logprobs_num=num_top,
                # The template has written the special tokens itself.
                add_special_tokens=False,
            )
            for j in range(self.num_per_prompt)
        ]
        expand_rids(inputs, request.rid)
        return inputs

    def output(self) -> _Output:
        """The reader of one output."""
        if self._forced_schema is not None:
            return _Output(ForcedCallParser(self._tools))
        max_calls = 1 if self.request.parallel_tool_calls is False else None
        parser = self._settings.reasoning_parser
        if self.request.separate_reasoning is False:
            parser = None
        if parser is None and not self._tools:
            return _Output(None)
        opened = parser is not None and self._prompt.rstrip().endswith(THINK)
        return _Output(
            OutputParser(
                self._tools or None,
                parse_reasoning=parser is not None,
                starts_in_reasoning=opened or parser == "deepseek-r1",
            ),
            max_calls,
        )

    def logprobs(self, entries: list[TokenLogprobs]) -> dict[str, Any] | None:
        """Logprobs in the shape of chat completions; None when they were not asked for."""
        if not self.request.logprobs:
            return None
        return {"content": [chat_logprob(self.tokenizer, entry) for entry in entries]}


class _Output:
    """One output on its way into messages: what was read so far, and what it has called."""

    def __init__(
        self, parser: OutputParser | ForcedCallParser | None, max_calls: int | None = None
    ) -> None:
        self._parser = parser
        self._max_calls = max_calls  # further calls are left out
        self._num_calls = 0
        self.is_started = False

    def read(self, text: str, finished: bool) -> list[dict[str, Any]]:
        """The parts of a delta, each ready for the client."""
        if self._parser is None:
            return [{"content": text}] if text else []
        pieces = self._parser.push(text)
        if finished:
            pieces += self._parser.finish()
        return [self._part(piece) for piece in pieces if not self._is_surplus(piece)]

    def finish_fields(self, generation: Generation) -> dict[str, Any]:
        """`finish_reason`, which is `tool_calls` when the model stopped after calling."""
        fields = finish_fields(generation)
        if self._num_calls and fields["finish_reason"] == "stop":
            fields["finish_reason"] = "tool_calls"
        return fields

    def _is_surplus(self, piece: Parsed) -> bool:
        return piece.call is not None and self._num_calls == self._max_calls

    def _part(self, piece: Parsed) -> dict[str, Any]:
        if piece.call is None:
            if piece.reasoning:
                return {"reasoning_content": piece.reasoning}
            return {"content": piece.content}
        index = self._num_calls
        self._num_calls += 1
        function = {"name": piece.call.name, "arguments": piece.call.arguments}
        call_id = f"call_{uuid.uuid4().hex[:24]}"
        call = {"index": index, "id": call_id, "type": "function", "function": function}
        return {"tool_calls": [call]}


async def chat(
    manager: TokenizerManager, body: dict[str, Any], settings: ChatSettings
) -> dict[str, Any]:
    """The unstreamed answer. Raises RequestError for what is refused or fails."""
    call = _Call(manager, body, settings, "chat.completion")
    choices = []
    async with submit(manager, call.inputs, call.names) as generations:
        for i, generation in enumerate(generations):
            await generation.result()
            output = call.output()
            choices.append(
                {
                    "index": i,
                    "message": _message(output.read(generation.text, True)),
                    "logprobs": call.logprobs(generation.logprobs),
                    **output.finish_fields(generation),
                }
            )
    return call.envelope.wrap(choices, usage=usage(generations, call.num_per_prompt))


async def chat_stream(
    manager: TokenizerManager, body: dict[str, Any], settings: ChatSettings
) -> AsyncGenerator[dict[str, Any], None]:
    """The chunks of a streamed answer. Raises RequestError for what is refused or fails."""
    call = _Call(manager, body, settings, "chat.completion.chunk")
    options = call.request.stream_options or StreamOptions()
    outputs = [call.output() for _ in call.inputs]
    async with (
        submit(manager, call.inputs, call.names) as generations,
        aclosing(merge(generations)) as merged,
    ):
        async for index, delta in merged:
            more = _stream_usage(options, generations[index])
            for choice in _chunks(call, index, outputs[index], delta, generations[index]):
                yield call.envelope.wrap([choice], **more)
        if options.include_usage:
            yield call.envelope.wrap([], usage=usage(generations, call.num_per_prompt))


def chat_logprob(tokenizer: HfTokenizer, entry: TokenLogprobs) -> dict[str, Any]:
    """One token's logprob with its alternatives."""

    def item(token_id: int, logprob: float | None) -> dict[str, Any]:
        text = tokenizer.decode([token_id], skip_special_tokens=False)
        token_bytes = tokenizer.token_bytes(token_id)
        return {"token": text, "logprob": logprob, "bytes": list(token_bytes)}

    top = [item(token_id, logprob) for logprob, token_id in entry.top]
    return {**item(entry.token_id, entry.logprob), "top_logprobs": top}


def _message(parts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The parts of a whole output as one message."""
    message: dict[str, Any] = {"role": "assistant", "content": "", "refusal": None}
    for part in parts:
        for name, value in part.items():
            if name == "tool_calls":
                calls = [{k: v for k, v in call.items() if k != "index"} for call in value]
                message["tool_calls"] = message.get("tool_calls", []) + calls
            else:
                message[name] = message.get(name, "") + value
    if message.get("tool_calls") and not message["content"]:
        message["content"] = None
    return message


def _chunks(
    call: _Call, index: int, output: _Output, delta: Delta, generation: Generation
) -> Iterable[dict[str, Any]]:
    """The choices, one a chunk, that one delta makes."""
    parts = output.read(delta.text, delta.finished)
    logprobs = call.logprobs(delta.logprobs) if delta.logprobs else None
    if not output.is_started:
        output.is_started = True
        yield _choice(index, {"role": "assistant", "content": ""})
    if logprobs is not None and not parts:
        parts = [{"content": ""}]
    for part in parts:
        yield _choice(index, part, logprobs)
        logprobs = None
    if delta.finished:
        yield {**_choice(index, {}), **output.finish_fields(generation)}


def _choice(index: int, delta: dict[str, Any], logprobs: Any = None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None}


def _stream_usage(options: StreamOptions, generation: Generation) -> dict[str, Any]:
    if options.continuous_usage_stats:
        return {"usage": usage([generation], 1)}
    return {"usage": None} if options.include_usage else {}
