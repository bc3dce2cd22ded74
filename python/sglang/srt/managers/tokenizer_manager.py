"""The asyncio side of serving: tokenise, validate, hand to the scheduler, give answers back.

Everything a client can get wrong is refused here, before the scheduler sees it. The manager owns
the table of live requests; each leaves it exactly once: finished, failed or given up.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Any, Literal, Protocol

import msgspec

from sglang.srt.environ import SGLANG_REQ_RUNNING_TIMEOUT
from sglang.srt.managers.detokenizer import IncrementalDetokenizer
from sglang.srt.managers.io_struct import (
    AbortReq,
    BatchTokenOut,
    ControlReply,
    ControlReq,
    SchedulerStats,
    TokenizedGenerateReqInput,
)
from sglang.srt.managers.request_state import GenerateInput, Generation, RequestError
from sglang.srt.managers.transport import Sender
from sglang.srt.sampling.sampling_params import SamplingParams, check_token_id
from sglang.srt.utils.hf_tokenizer import HfTokenizer, TokenizerError

MAX_BATCH_SIZE = 1024
MAX_RID_CHARS = 256
MAX_TOP_LOGPROBS = 128
MAX_TOKEN_IDS_LOGPROB = 1024
# A text this long takes milliseconds to tokenise: done in a thread, other streams go on.
_LONG_TEXT_CHARS = 16384

ControlOp = Literal["flush_cache", "server_info", "cache_report", "shutdown"]


class ModelFacts(Protocol):
    """What the front end needs to know of the model; `ModelConfig` is one."""

    @property
    def architecture(self) -> str:
        """Class name in Hugging Face's transformers."""

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding: token ids are below it."""

    @property
    def context_len(self) -> int:
        """Most tokens of a prompt with its output."""


class RequestObserver(Protocol):
    """Is told of every answer; `entrypoints.metrics` is one."""

    def observe_tokens(self, generation: Generation, num_tokens: int, gap_seconds: float) -> None:
        """`num_tokens` new tokens came, `gap_seconds` after the ones before (or the arrival)."""

    def observe_end(self, generation: Generation) -> None:
        """The request left the table."""


class TokenizerManager:
    """All live requests of the front end. Belongs to one event loop, not thread-safe."""

    def __init__(
        self,
        model: ModelFacts,
        tokenizer: HfTokenizer,
        sender: Sender,
        stream_interval: int = 1,
        observer: RequestObserver | None = None,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.max_req_len = model.context_len
        self.stats = SchedulerStats({}, {})
        self.refuse_with: str | None = None  # why no request is accepted just now
        self._sender = sender
        self._stream_interval = stream_interval
        self._observer = observer
        self._live: dict[str, Generation] = {}  # by wire_rid
        self._wire_rids: dict[str, list[str]] = {}  # by the client's rid
        self._replies: dict[str, asyncio.Future[ControlReply]] = {}
        self._timeout_seconds = SGLANG_REQ_RUNNING_TIMEOUT.get()

    @property
    def num_live(self) -> int:
        """Requests that wait for an answer."""
        return len(self._live)

    @contextlib.asynccontextmanager
    async def submit(self, inputs: Sequence[GenerateInput]) -> AsyncIterator[list[Generation]]:
        """Validate all `inputs`, then send all of them. Leaving the block, by whatever way,
        aborts those that have not ended: a client that went away holds nothing.

        Raises RequestError when one of them is refused; then none was sent.
        """
        if self.refuse_with is not None:
            raise RequestError(self.refuse_with, 503)
        if not 1 <= len(inputs) <= MAX_BATCH_SIZE:
            raise RequestError(
                f"a call may ask for 1 to {MAX_BATCH_SIZE} outputs, got {len(inputs)}"
            )
        encoded: dict[tuple[str, bool], list[int]] = {}  # n outputs of a prompt share its tokens
        requests = [await self._tokenize(item, encoded) for item in inputs]
        self._check_rids(inputs)
        generations: list[Generation] = []
        try:
            for item, request in zip(inputs, requests, strict=True):
                generations.append(self._start(item, request))
            yield generations
        finally:
            for generation in generations:
                if generation.wire_rid in self._live:
                    self._forget(generation)
                    self._sender.send(AbortReq(rid=generation.wire_rid))

    def abort(self, rid: str) -> bool:
        """Ask the scheduler to stop the request(s) of the client's `rid`; False if there is none.

        Each is still answered: the scheduler says that it is aborted.
        """
        wire_rids = self._wire_rids.get(rid, [])
        for wire_rid in wire_rids:
            self._sender.send(AbortReq(rid=wire_rid))
        return bool(wire_rids)

    def abort_all(self) -> None:
        """Ask the scheduler to stop every request."""
        self._sender.send(AbortReq(abort_all=True))

    def fail_all(self, message: str, status: int = 500) -> None:
        """Answer every request and control call with an error, whatever the scheduler does."""
        for generation in list(self._live.values()):
            generation.fail(message, status)
            self._forget(generation)
        for reply in self._replies.values():
            if not reply.done():
                reply.set_exception(RequestError(message, status))

    async def control(self, op: ControlOp, timeout_seconds: float = 30.0) -> ControlReply:
        """Call the scheduler. Raises RequestError 503 without an answer in time."""
        if self.refuse_with is not None and op != "shutdown":
            raise RequestError(self.refuse_with, 503)
        call_id = uuid.uuid4().hex
        self._replies[call_id] = asyncio.get_running_loop().create_future()
        try:
            self._sender.send(ControlReq(call_id, op))
            return await asyncio.wait_for(self._replies[call_id], timeout_seconds)
        except asyncio.TimeoutError:
            raise RequestError(f"the scheduler did not answer {op} in time", 503) from None
        finally:
            del self._replies[call_id]

    def handle(self, message: BatchTokenOut | ControlReply | SchedulerStats) -> None:
        """Take one message of the scheduler."""
        if isinstance(message, BatchTokenOut):
            for out in message.outs:
                # Unknown: the client went away, or a stop string ended it.
                if (generation := self._live.get(out.rid)) is not None:
                    self._apply(generation, out)
        elif isinstance(message, SchedulerStats):
            self.stats = message
        elif (reply := self._replies.get(message.id)) is not None and not reply.done():
            reply.set_result(message)

    def _apply(self, generation: Generation, out: Any) -> None:
        last_token_at = generation.last_token_at
        num_before = generation.completion_tokens
        if generation.apply(out):
            self._sender.send(AbortReq(rid=generation.wire_rid, finish=True))
        num_new = generation.completion_tokens - num_before
        if self._observer is not None and num_new:
            gap = generation.last_token_at - last_token_at
            self._observer.observe_tokens(generation, num_new, gap)
        if generation.finish_reason is not None:
            self._forget(generation)

    def _start(self, item: GenerateInput, request: TokenizedGenerateReqInput) -> Generation:
        params = request.sampling_params
        detokenizer = IncrementalDetokenizer(
            self.tokenizer.decoder(params.skip_special_tokens),
            params.stop,
            params.no_stop_trim,
            params.min_new_tokens,
        )
        rid = item.rid or request.rid
        generation = Generation(
            rid,
            request.rid,
            request.input_ids,
            detokenizer,
            self._stream_interval,
            params.no_stop_trim,
        )
        self._live[request.rid] = generation
        self._wire_rids.setdefault(rid, []).append(request.rid)
        if self._timeout_seconds:
            loop = asyncio.get_running_loop()
            generation.timer = loop.call_later(self._timeout_seconds, self._time_out, generation)
        self._sender.send(request)
        return generation

    def _time_out(self, generation: Generation) -> None:
        if self._live.get(generation.wire_rid) is generation:
            generation.fail(f"not finished within {self._timeout_seconds:g} s", 504)
            self._forget(generation)
            self._sender.send(AbortReq(rid=generation.wire_rid, message="timed out"))

    def _forget(self, generation: Generation) -> None:
        """The one way out of the table."""
        del self._live[generation.wire_rid]
        if generation.timer is not None:
            generation.timer.cancel()
        siblings = self._wire_rids[generation.rid]
        siblings.remove(generation.wire_rid)
        if not siblings:
            del self._wire_rids[generation.rid]
        if self._observer is not None:
            self._observer.observe_end(generation)

    def _check_rids(self, inputs: Sequence[GenerateInput]) -> None:
        rids = [item.rid for item in inputs if item.rid is not None]
        for rid in rids:
            if not 0 < len(rid) <= MAX_RID_CHARS or not rid.isprintable():
                raise RequestError(
                    f"rid must be 1 to {MAX_RID_CHARS} printable characters", param="rid"
                )
            if rid in self._wire_rids or rids.count(rid) > 1:
                raise RequestError(f"rid {rid} is already in use", param="rid")

    async def _tokenize(
        self, item: GenerateInput, encoded: dict[tuple[str, bool], list[int]]
    ) -> TokenizedGenerateReqInput:
        """The request as the scheduler gets it, fully validated."""
        input_ids = await self._input_ids(item, encoded)
        vocab_size = self.model.vocab_size
        params = self._finish_params(item, len(input_ids))
        try:
            params.verify(vocab_size)
            for token_id in item.token_ids_logprob:
                check_token_id("token_ids_logprob", token_id, vocab_size)
        except ValueError as error:
            raise RequestError(str(error), param=_field_named_in(str(error), params)) from None
        _check_logprob_fields(item, len(input_ids))
        return TokenizedGenerateReqInput(
            rid=_make_wire_rid(item.rid),
            input_ids=input_ids,
            sampling_params=params,
            return_logprob=item.return_logprob,
            logprob_start_len=item.logprob_start_len,
            top_logprobs_num=item.top_logprobs_num,
            token_ids_logprob=item.token_ids_logprob,
        )

    async def _input_ids(
        self, item: GenerateInput, encoded: dict[tuple[str, bool], list[int]]
    ) -> list[int]:
        if item.input_ids is not None:
            input_ids = item.input_ids
            for token_id in input_ids:
                if not 0 <= token_id < self.model.vocab_size:
                    raise RequestError(
                        f"input_ids must hold token ids in [0, {self.model.vocab_size}), "
                        f"got {token_id}",
                        param="input_ids",
                    )
        else:
            key = (item.text or "", item.add_special_tokens)
            if key not in encoded:
                encoded[key] = await self.encode(*key)
                await asyncio.sleep(0)  # other requests go on while a large batch is encoded
            input_ids = encoded[key]
        if not input_ids:
            raise RequestError("the prompt is empty", param="text")
        return input_ids

    async def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`. Raises RequestError for text too long to fit whatever it says."""
        if len(text) > self.max_req_len * self.tokenizer.max_token_chars:
            raise RequestError(
                f"the prompt has {len(text)} characters, which is more than the "
                f"{self.max_req_len} tokens that fit",
                param="text",
            )
        try:
            if len(text) < _LONG_TEXT_CHARS:
                return self.tokenizer.encode(text, add_special_tokens)
            return await asyncio.to_thread(self.tokenizer.encode, text, add_special_tokens)
        except TokenizerError as error:
            raise RequestError(str(error), param="text") from None

    def _finish_params(self, item: GenerateInput, prompt_len: int) -> SamplingParams:
        """Sampling parameters with the length limit, the seed and the end token filled in."""
        params = item.sampling_params
        room = self.max_req_len - prompt_len
        wanted = params.max_new_tokens
        if room < (0 if wanted == 0 else 1):
            raise RequestError(
                f"the prompt has {prompt_len} tokens, but a request may have at most "
                f"{self.max_req_len} with its output (--context-length, --max-total-tokens)",
                param="text" if item.input_ids is None else "input_ids",
            )
        if wanted is None or (item.clamp_max_new_tokens and wanted > room):
            wanted = max(room, 0)
        if wanted > room:
            raise RequestError(
                f"the request has {prompt_len} prompt tokens and asks for {wanted} more, "
                f"{prompt_len + wanted} in all, but at most {self.max_req_len} fit",
                param="max_new_tokens",
            )
        changes: dict[str, Any] = {"max_new_tokens": wanted}
        if params.sampling_seed is None:
            # Fixed here, so that a retracted request goes on with the same draws.
            changes["sampling_seed"] = int.from_bytes(os.urandom(4), "little")
        eos = self.tokenizer.eos_token_id
        if eos is not None and not params.ignore_eos and eos not in params.stop_token_ids:
            changes["stop_token_ids"] = [*params.stop_token_ids, eos]
        return msgspec.structs.replace(params, **changes)


def _field_named_in(message: str, params: SamplingParams) -> str | None:
    """The first word of `message` that is a field which the request sets."""
    given = {name for name in params.__struct_fields__ if getattr(params, name) is not None}
    given.add("token_ids_logprob")
    return next((word for word in re.findall(r"\w+", message) if word in given), None)


def _make_wire_rid(rid: str | None) -> str:
    unique = uuid.uuid4().hex
    return unique if rid is None else f"{rid}#{unique[:12]}"


def _check_logprob_fields(item: GenerateInput, prompt_len: int) -> None:
    if not 0 <= item.top_logprobs_num <= MAX_TOP_LOGPROBS:
        raise RequestError(
            f"top_logprobs_num must be in [0, {MAX_TOP_LOGPROBS}], got {item.top_logprobs_num}",
            param="top_logprobs_num",
        )
    if len(item.token_ids_logprob) > MAX_TOKEN_IDS_LOGPROB:
        raise RequestError(
            f"token_ids_logprob takes at most {MAX_TOKEN_IDS_LOGPROB} ids",
            param="token_ids_logprob",
        )
    if not -1 <= item.logprob_start_len < prompt_len:
        raise RequestError(
            f"logprob_start_len must be in [-1, {prompt_len - 1}], got {item.logprob_start_len}",
            param="logprob_start_len",
        )
