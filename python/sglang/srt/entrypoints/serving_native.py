"""SGLang's native `/generate`: answers."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec

from sglang.srt.entrypoints.native_protocol import GenerateCall, parse_generate
from sglang.srt.entrypoints.streaming import merge
from sglang.srt.managers.io_struct import TokenLogprobs
from sglang.srt.managers.request_state import GenerateInput, Generation
from sglang.srt.managers.tokenizer_manager import TokenizerManager


async def generate(manager: TokenizerManager, body: dict[str, Any]) -> Any:
    """The unstreamed answer: an object, or a list of them for a batch or n > 1.

    Raises RequestError for what is refused or fails.
    """
    call = parse_generate(body)
    async with manager.submit(call.inputs) as generations:
        answers = []
        for item, generation in zip(call.inputs, generations, strict=True):
            await generation.result()
            answers.append(_answer(manager, call, item, generation))
    return answers[0] if call.is_single else answers


async def generate_stream(
    manager: TokenizerManager, body: dict[str, Any]
) -> AsyncGenerator[dict[str, Any], None]:
    """Answers so far: as in SGLang each holds the whole text up to then. Several outputs are told
    apart by `index`. Raises RequestError for what is refused or fails."""
    call = parse_generate(body)
    async with manager.submit(call.inputs) as generations, aclosing(merge(generations)) as merged:
        async for index, delta in merged:
            if generations[index].finish_reason is not None and not delta.finished:
                continue  # ended while this one waited: the last one says the same and more
            answer = _answer(manager, call, call.inputs[index], generations[index])
            if not call.is_single:
                answer["index"] = index
            yield answer


def _answer(
    manager: TokenizerManager, call: GenerateCall, item: GenerateInput, generation: Generation
) -> dict[str, Any]:
    reason = generation.finish_reason
    meta: dict[str, Any] = {
        "id": generation.rid,
        "finish_reason": None if reason is None else finish_reason_dict(reason),
        "prompt_tokens": generation.prompt_tokens,
        "completion_tokens": generation.completion_tokens,
        "cached_tokens": generation.cached_tokens,
    }
    if generation.finished_at is not None:
        meta["e2e_latency"] = generation.finished_at - generation.created
    if item.return_logprob:
        _add_logprobs(meta, manager, call, item, generation)
    return {"text": generation.text, "output_ids": list(generation.token_ids), "meta_info": meta}


def finish_reason_dict(reason: Any) -> dict[str, Any]:
    """A finish reason as SGLang's JSON has it: the type and what belongs to it."""
    values: dict[str, Any] = msgspec.to_builtins(reason)
    return values


def _add_logprobs(
    meta: dict[str, Any],
    manager: TokenizerManager,
    call: GenerateCall,
    item: GenerateInput,
    generation: Generation,
) -> None:
    """SGLang's rows of [logprob, token id, text or null], one a token."""

    def row(logprob: float | None, token_id: int) -> list[Any]:
        text = None
        if call.return_text_in_logprobs:
            text = manager.tokenizer.decode([token_id], skip_special_tokens=False)
        return [logprob, token_id, text]

    def rows(pairs: list[tuple[float, int]]) -> list[Any] | None:
        return [row(logprob, token_id) for logprob, token_id in pairs] or None

    kinds: list[tuple[str, list[TokenLogprobs]]] = [("output", generation.logprobs)]
    if item.logprob_start_len >= 0:
        kinds.append(("input", generation.input_logprobs))
    for kind, entries in kinds:
        meta[f"{kind}_token_logprobs"] = [row(e.logprob, e.token_id) for e in entries]
        if item.top_logprobs_num:
            meta[f"{kind}_top_logprobs"] = [rows(e.top) for e in entries]
        if item.token_ids_logprob:
            meta[f"{kind}_token_ids_logprobs"] = [rows(e.chosen_ids) for e in entries]
