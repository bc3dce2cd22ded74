"""`/v1/completions`."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from sglang.srt.entrypoints.native_protocol import vary_seed
from sglang.srt.entrypoints.openai.answers import (
    Envelope,
    expand_rids,
    finish_fields,
    submit,
    usage,
)
from sglang.srt.entrypoints.openai.protocol import CompletionRequest, StreamOptions, parse_body
from sglang.srt.entrypoints.streaming import merge
from sglang.srt.managers.io_struct import TokenLogprobs
from sglang.srt.managers.request_state import GenerateInput, Generation, RequestError
from sglang.srt.managers.tokenizer_manager import TokenizerManager
from sglang.srt.utils.hf_tokenizer import HfTokenizer

DEFAULT_MAX_TOKENS = 16
_NAMES = {"text": "prompt", "input_ids": "prompt", "top_logprobs_num": "logprobs"}


class _Call:
    """One parsed call: its inputs, and how to word its answer."""

    def __init__(self, manager: TokenizerManager, body: dict[str, Any], model: str) -> None:
        self.request = parse_body(body, CompletionRequest)
        self.num_per_prompt = self.request.n or 1
        self.tokenizer = manager.tokenizer
        self.envelope = Envelope("cmpl", "text_completion", self.request.model or model)
        self.inputs = self._inputs()

    def _inputs(self) -> list[GenerateInput]:
        request = self.request
        max_tokens = DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens
        params = request.sampling_params(max_tokens)
        want_logprobs = request.logprobs is not None
        inputs = []
        for prompt in request.prompts():
            for j in range(self.num_per_prompt):
                item = GenerateInput(
                    vary_seed(params, j),
                    clamp_max_new_tokens=request.max_tokens is None,
                    return_logprob=want_logprobs,
                    logprob_start_len=0 if want_logprobs and request.echo else -1,
                    top_logprobs_num=request.logprobs or 0,
                )
                setattr(item, "text" if isinstance(prompt, str) else "input_ids", prompt)
                inputs.append(item)
        if not inputs:
            raise RequestError("the prompt is empty", param="prompt")
        expand_rids(inputs, request.rid)
        return inputs

    def echoed(self, index: int, generation: Generation) -> str:
        """The prompt's text, when the client wants it in front of the answer."""
        if not self.request.echo:
            return ""
        text = self.inputs[index].text
        return self.tokenizer.decode(generation.input_ids) if text is None else text

    def logprobs(self, entries: list[TokenLogprobs], offset: int) -> dict[str, Any] | None:
        """Logprobs of `entries` in OpenAI's columns; None when they were not asked for."""
        if self.request.logprobs is None:
            return None
        return completion_logprobs(self.tokenizer, entries, offset, self.request.logprobs)


async def complete(manager: TokenizerManager, body: dict[str, Any], model: str) -> dict[str, Any]:
    """The unstreamed answer. Raises RequestError for what is refused or fails."""
    call = _Call(manager, body, model)
    choices = []
    async with submit(manager, call.inputs, _NAMES) as generations:
        for i, generation in enumerate(generations):
            await generation.result()
            entries = [*generation.input_logprobs, *generation.logprobs]
            text = call.echoed(i, generation) + generation.text
            choices.append(_choice(i, text, call.logprobs(entries, 0), finish_fields(generation)))
    return call.envelope.wrap(choices, usage=usage(generations, call.num_per_prompt))


async def complete_stream(
    manager: TokenizerManager, body: dict[str, Any], model: str
) -> AsyncGenerator[dict[str, Any], None]:
    """The chunks of a streamed answer. Raises RequestError for what is refused or fails."""
    call = _Call(manager, body, model)
    options = call.request.stream_options or StreamOptions()
    offsets: dict[int, int] = {}
    async with (
        submit(manager, call.inputs, _NAMES) as generations,
        aclosing(merge(generations)) as merged,
    ):
        async for index, delta in merged:
            generation = generations[index]
            text, entries = delta.text, delta.logprobs
            if index not in offsets:
                offsets[index] = 0
                text = call.echoed(index, generation) + text
                entries = [*generation.input_logprobs, *entries]
            if not (text or entries or delta.finished):
                continue
            logprobs = call.logprobs(entries, offsets[index])
            offsets[index] += len(text)
            more: dict[str, Any] = {"usage": None} if options.include_usage else {}
            if options.continuous_usage_stats:
                more["usage"] = usage([generation], 1)
            end = finish_fields(generation) if delta.finished else {"finish_reason": None}
            yield call.envelope.wrap([_choice(index, text, logprobs, end)], **more)
        if options.include_usage:
            yield call.envelope.wrap([], usage=usage(generations, call.num_per_prompt))


def completion_logprobs(
    tokenizer: HfTokenizer, entries: list[TokenLogprobs], offset: int, num_top: int
) -> dict[str, Any]:
    """OpenAI's columns: one entry a token. `offset` is where the first token begins in the text."""

    def text_of(token_id: int) -> str:
        return tokenizer.decode([token_id], skip_special_tokens=False)

    tokens = [text_of(entry.token_id) for entry in entries]
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    top: list[dict[str, float] | None] = []
    for entry, token in zip(entries, tokens, strict=True):
        if entry.logprob is None or not num_top:
            top.append(None)
            continue
        # Several ids can have the same text; the likeliest keeps it.
        row: dict[str, float] = {}
        for logprob, token_id in entry.top:
            row.setdefault(text_of(token_id), logprob)
        row.setdefault(token, entry.logprob)
        top.append(row)
    return {
        "tokens": tokens,
        "token_logprobs": [entry.logprob for entry in entries],
        "top_logprobs": top,
        "text_offset": offsets,
    }


def _choice(index: int, text: str, logprobs: Any, end: dict[str, Any]) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, **end}
