"""`/v1/chat/completions`."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from sglang.srt.entrypoints.native_protocol import vary_seed
from sglang.srt.entrypoints.openai.answers import Envelope, expand_rids, finish_fields, usage
from sglang.srt.entrypoints.openai.protocol import (
    MAX_CHAT_TOP_LOGPROBS,
    ChatCompletionRequest,
    StreamOptions,
    message_text,
    parse_body,
)
from sglang.srt.entrypoints.streaming import merge
from sglang.srt.managers.io_struct import TokenLogprobs
from sglang.srt.managers.request_state import GenerateInput, Generation, RequestError
from sglang.srt.managers.tokenizer_manager import TokenizerManager
from sglang.srt.utils.hf_tokenizer import HfTokenizer, TokenizerError


class _Call:
    """One parsed call: its inputs, and how to word its answer."""

    def __init__(
        self, manager: TokenizerManager, body: dict[str, Any], model: str, kind: str
    ) -> None:
        self.request = parse_body(body, ChatCompletionRequest)
        self.tokenizer = manager.tokenizer
        self.envelope = Envelope("chatcmpl", kind, self.request.model or model)
        self.num_per_prompt = self.request.n or 1
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
        limit = request.max_tokens if limit is None else limit
        params = request.sampling_params(limit)
        prompt = render_prompt(self.tokenizer, request)
        inputs = [
            GenerateInput(
                vary_seed(params, j),
                text=prompt,
                return_logprob=bool(request.logprobs),
                top_logprobs_num=num_top,
                # The template has written the special tokens itself.
                add_special_tokens=False,
            )
            for j in range(self.num_per_prompt)
        ]
        expand_rids(inputs, request.rid)
        return inputs

    def logprobs(self, entries: list[TokenLogprobs]) -> dict[str, Any] | None:
        """Logprobs in the shape of chat completions; None when they were not asked for."""
        if not self.request.logprobs:
            return None
        return {"content": [chat_logprob(self.tokenizer, entry) for entry in entries]}


async def chat(manager: TokenizerManager, body: dict[str, Any], model: str) -> dict[str, Any]:
    """The unstreamed answer. Raises RequestError for what is refused or fails."""
    call = _Call(manager, body, model, "chat.completion")
    choices = []
    async with manager.submit(call.inputs) as generations:
        for i, generation in enumerate(generations):
            await generation.result()
            choices.append(
                {
                    "index": i,
                    "message": {"role": "assistant", "content": generation.text, "refusal": None},
                    "logprobs": call.logprobs(generation.logprobs),
                    **finish_fields(generation),
                }
            )
    return call.envelope.wrap(choices, usage=usage(generations, call.num_per_prompt))


async def chat_stream(
    manager: TokenizerManager, body: dict[str, Any], model: str
) -> AsyncGenerator[dict[str, Any], None]:
    """The chunks of a streamed answer. Raises RequestError for what is refused or fails."""
    call = _Call(manager, body, model, "chat.completion.chunk")
    options = call.request.stream_options or StreamOptions()
    started: set[int] = set()
    async with manager.submit(call.inputs) as generations, aclosing(merge(generations)) as merged:
        async for index, delta in merged:
            generation = generations[index]
            more = _stream_usage(options, generation)
            if index not in started:
                started.add(index)
                first = {"role": "assistant", "content": ""}
                yield call.envelope.wrap([_chunk(index, first)], **more)
            if delta.text or (delta.logprobs and call.request.logprobs):
                logprobs = call.logprobs(delta.logprobs)
                chunk = _chunk(index, {"content": delta.text}, logprobs)
                yield call.envelope.wrap([chunk], **more)
            if generation.finish_reason is not None:
                chunk = {**_chunk(index, {}), **finish_fields(generation)}
                yield call.envelope.wrap([chunk], **more)
        if options.include_usage:
            yield call.envelope.wrap([], usage=usage(generations, call.num_per_prompt))


def render_prompt(tokenizer: HfTokenizer, request: ChatCompletionRequest) -> str:
    """The conversation by the model's chat template.

    With `continue_final_message` the prompt ends inside the last message, which the model goes on
    with. Raises RequestError for a conversation that the template refuses.
    """
    if not request.messages:
        raise RequestError("messages must not be empty", param="messages")
    messages = []
    for message in request.messages:
        role = "system" if message.role == "developer" else message.role
        entry: dict[str, Any] = {"role": role, "content": message_text(message)}
        for name in ("name", "reasoning_content", "tool_calls", "tool_call_id"):
            if (value := getattr(message, name)) is not None:
                entry[name] = value
        messages.append(entry)
    variables = dict(request.chat_template_kwargs or {})
    for name in ("messages", "add_generation_prompt"):
        if name in variables:
            raise RequestError(
                f"chat_template_kwargs must not set {name}", param="chat_template_kwargs"
            )
    tail = ""
    if request.continue_final_message:
        if messages[-1]["role"] != "assistant":
            raise RequestError(
                "continue_final_message needs an assistant message at the end",
                param="continue_final_message",
            )
        tail = messages.pop()["content"]
    add_prompt = request.add_generation_prompt is not False or bool(tail)
    try:
        prompt = tokenizer.render_chat(messages, add_generation_prompt=add_prompt, **variables)
    except TokenizerError as error:
        raise RequestError(str(error), param="messages") from None
    return prompt + tail


def chat_logprob(tokenizer: HfTokenizer, entry: TokenLogprobs) -> dict[str, Any]:
    """One token's logprob with its alternatives."""

    def item(token_id: int, logprob: float | None) -> dict[str, Any]:
        text = tokenizer.decode([token_id], skip_special_tokens=False)
        token_bytes = tokenizer.token_bytes(token_id)
        return {"token": text, "logprob": logprob, "bytes": list(token_bytes)}

    top = [item(token_id, logprob) for logprob, token_id in entry.top]
    return {**item(entry.token_id, entry.logprob), "top_logprobs": top}


def _chunk(index: int, delta: dict[str, Any], logprobs: Any = None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None}


def _stream_usage(options: StreamOptions, generation: Generation) -> dict[str, Any]:
    if options.continuous_usage_stats:
        return {"usage": usage([generation], 1)}
    return {"usage": None} if options.include_usage else {}
