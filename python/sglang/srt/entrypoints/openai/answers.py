"""Objects of OpenAI's API that chat and text completions share."""

from __future__ import annotations

import contextlib
import re
import time
import uuid
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any

from sglang.srt.managers.request_state import GenerateInput, Generation, RequestError
from sglang.srt.managers.tokenizer_manager import TokenizerManager

# Fields whose name in OpenAI's API is not the one inside.
_CLIENT_NAMES = {
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "sampling_seed": "seed",
}


class Envelope:
    """Id, kind, time and model: what every answer and chunk of one call begins with."""

    def __init__(self, prefix: str, kind: str, model: str) -> None:
        self._fields = {
            "id": f"{prefix}-{uuid.uuid4().hex}",
            "object": kind,
            "created": int(time.time()),
            "model": model,
        }

    def wrap(self, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        """One answer or chunk."""
        return {**self._fields, "choices": choices, **more}


@contextlib.asynccontextmanager
async def submit(
    manager: TokenizerManager, inputs: Sequence[GenerateInput], names: Mapping[str, str]
) -> AsyncIterator[list[Generation]]:
    """`manager.submit`, whose errors name fields as the client wrote them: by `names` where the
    route has its own. Raises RequestError."""
    try:
        async with manager.submit(inputs) as generations:
            yield generations
    except RequestError as error:
        ours = {**_CLIENT_NAMES, **names}
        message = re.sub(r"\w+_\w+", lambda word: ours.get(word[0], word[0]), error.message)
        param = None if error.param is None else ours.get(error.param, error.param)
        raise RequestError(message, error.status, param) from None


def usage(generations: Iterable[Generation], num_per_prompt: int) -> dict[str, Any]:
    """Token counts of a call. A prompt counts once, however many outputs it has."""
    prompt_tokens = completion_tokens = cached_tokens = 0
    for i, generation in enumerate(generations):
        completion_tokens += generation.completion_tokens
        if i % num_per_prompt == 0:
            prompt_tokens += generation.prompt_tokens
            cached_tokens += generation.cached_tokens
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }


def finish_fields(generation: Generation) -> dict[str, Any]:
    """`finish_reason` in OpenAI's words, and SGLang's `matched_stop` beside it."""
    reason = generation.finish_reason
    assert reason is not None, "asked for before the end"
    return {"finish_reason": reason.type, "matched_stop": reason.matched}


def expand_rids(inputs: list[GenerateInput], rid: str | None) -> None:
    """Name the outputs of a call: the client's rid alone, or numbered when there are several."""
    if rid is not None:
        for i, item in enumerate(inputs):
            item.rid = rid if len(inputs) == 1 else f"{rid}_{i}"
