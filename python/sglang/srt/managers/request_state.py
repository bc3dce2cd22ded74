"""What the front end knows of one request: its input, its output so far, and who waits for it."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator

from sglang.srt.managers.detokenizer import IncrementalDetokenizer
from sglang.srt.managers.io_struct import FinishReason, TokenLogprobs, TokenOut
from sglang.srt.sampling.sampling_params import SamplingParams


class RequestError(Exception):
    """A request that is refused or failed: `status` is HTTP's, `param` the field at fault."""

    def __init__(self, message: str, status: int = 400, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.param = param


@dataclasses.dataclass
class GenerateInput:
    """One prompt for one output, before validation. Either `text` or `input_ids` is set.

    `max_new_tokens` None asks for the rest of the context; with `clamp_max_new_tokens` a limit
    that the client did not set itself shrinks to what fits instead of being refused.
    """

    sampling_params: SamplingParams
    text: str | None = None
    input_ids: list[int] | None = None
    rid: str | None = None
    clamp_max_new_tokens: bool = False
    return_logprob: bool = False
    logprob_start_len: int = -1
    top_logprobs_num: int = 0
    token_ids_logprob: list[int] = dataclasses.field(default_factory=list)
    stream: bool = False
    add_special_tokens: bool = True


@dataclasses.dataclass
class Delta:
    """What a request produced since the last `Delta`. `text` may lag behind `token_ids`.

    `finished` is for the last one alone; the request itself may have ended before that is read.
    """

    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprobs]
    finished: bool


class Generation:
    """One accepted request. The manager feeds it, exactly one consumer reads it.

    `rid` is what the client sees, `wire_rid` is unique for ever: late tokens of an aborted request
    can't reach another one of the same name.
    """

    def __init__(
        self,
        rid: str,
        wire_rid: str,
        input_ids: list[int],
        detokenizer: IncrementalDetokenizer,
        stream_interval: int = 1,
        no_stop_trim: bool = False,
    ) -> None:
        self.rid = rid
        self.wire_rid = wire_rid
        self.input_ids = input_ids
        self.text = ""
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        self.input_logprobs: list[TokenLogprobs] = []
        self.cached_tokens = 0
        self.finish_reason: FinishReason | None = None
        self.created = time.monotonic()
        self.first_token_at: float | None = None
        self.last_token_at = self.created
        self.finished_at: float | None = None
        self.timer: asyncio.TimerHandle | None = None
        self._detokenizer = detokenizer
        self._stream_interval = stream_interval
        self._no_stop_trim = no_stop_trim
        self._changed = asyncio.Event()

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.input_ids)

    @property
    def completion_tokens(self) -> int:
        """Tokens generated, up to and with the one that ended the request."""
        return len(self.token_ids)

    def apply(self, out: TokenOut) -> bool:
        """Add the scheduler's news. True when a stop string ended the request before the
        scheduler did, so that the scheduler has to be told."""
        now = time.monotonic()
        if out.token_ids:
            self.first_token_at = self.first_token_at or now
            self.last_token_at = now
        self.cached_tokens = out.cached_tokens
        self.input_logprobs.extend(out.input_logprobs)
        stop_token = self._trailing_stop_token(out)
        for i, token_id in enumerate(out.token_ids):
            self.token_ids.append(token_id)
            if i < len(out.logprobs):
                self.logprobs.append(out.logprobs[i])
            if stop_token and i == len(out.token_ids) - 1:
                self._detokenizer.skip()
            else:
                self.text += self._detokenizer.push(token_id)
            if self._detokenizer.matched is not None:
                self._end(FinishReason("stop", matched=self._detokenizer.matched))
                return out.finish_reason is None
        if out.finish_reason is not None:
            self.text += self._detokenizer.finish()
            matched = self._detokenizer.matched
            self._end(FinishReason("stop", matched=matched) if matched else out.finish_reason)
        self._changed.set()
        return False

    def fail(self, message: str, status: int) -> None:
        """End the request with an error, from the front end's side."""
        if self.finish_reason is None:
            self._end(FinishReason("abort", message=message, status_code=status))

    async def deltas(self) -> AsyncIterator[Delta]:
        """Output as it comes, at least `stream_interval` tokens at a time but for the last.

        Raises RequestError when the request failed or was refused by the scheduler.
        """
        text_end = tokens_end = 0
        while True:
            await self._wait(tokens_end + self._stream_interval)
            self._check_failed()
            delta = Delta(
                self.text[text_end:],
                self.token_ids[tokens_end:],
                self.logprobs[tokens_end:],
                self.finish_reason is not None,
            )
            text_end, tokens_end = len(self.text), len(self.token_ids)
            yield delta
            if delta.finished:
                return

    async def result(self) -> Generation:
        """Wait for the end; returns itself. Raises RequestError like `deltas`."""
        await self._wait(1 << 62)
        self._check_failed()
        return self

    async def _wait(self, num_tokens: int) -> None:
        while self.finish_reason is None and len(self.token_ids) < num_tokens:
            self._changed.clear()
            await self._changed.wait()

    def _check_failed(self) -> None:
        reason = self.finish_reason
        if reason is not None and reason.type == "abort" and (reason.status_code or 0) >= 400:
            raise RequestError(reason.message or "request aborted", reason.status_code or 500)

    def _trailing_stop_token(self, out: TokenOut) -> bool:
        """Whether the last token is a stop token whose text is not part of the answer."""
        reason = out.finish_reason
        return (
            reason is not None
            and not self._no_stop_trim
            and isinstance(reason.matched, int)
            and bool(out.token_ids)
            and out.token_ids[-1] == reason.matched
        )

    def _end(self, reason: FinishReason) -> None:
        self.finish_reason = reason
        self.finished_at = time.monotonic()
        self._changed.set()
