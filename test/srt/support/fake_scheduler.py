"""A scheduler in a thread that needs no model: it speaks the real messages and echoes prompts.

Output position i of a request is its prompt's token i (cycling), so a test chooses the answer by
choosing the prompt. `token_delay` makes time for aborts; `die` plays a dead stage.
"""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time
from typing import Any

from sglang.srt.managers.io_struct import (
    AbortReq,
    BatchTokenOut,
    ControlReply,
    ControlReq,
    FinishReason,
    SchedulerStats,
    StageReady,
    TokenizedGenerateReqInput,
    TokenLogprobs,
    TokenOut,
)
from sglang.srt.managers.transport import LocalChannel, frontend_messages, scheduler_messages


@dataclasses.dataclass
class ModelStub:
    """What the front end asks of a model configuration."""

    vocab_size: int
    context_len: int = 512
    eos_token_ids: tuple[int, ...] = ()
    num_layers: int = 4
    architecture: str = "Fake"


@dataclasses.dataclass
class _Live:
    request: TokenizedGenerateReqInput
    num_out: int = 0


class FakeScheduler:
    """Implements `runtime.Stages` and answers over two in-process channels."""

    def __init__(
        self,
        eos_token_ids: tuple[int, ...] = (),
        token_delay: float = 0.0,
        tokens_per_message: int = 1,
        max_queued: int | None = None,
        max_req_len: int = 512,
        channels: tuple[Any, Any] | None = None,
    ) -> None:
        """`channels`: (receiver, sender) of a process that plays a stage; else in-process ones."""
        self.pp_ranks = [0]
        self.to_scheduler: Any = LocalChannel(frontend_messages())
        self.to_frontend: Any = LocalChannel(scheduler_messages())
        if channels is not None:
            self.to_scheduler, self.to_frontend = channels
        self.received: list[Any] = []
        self.token_delay = token_delay
        self._eos = eos_token_ids
        self._tokens_per_message = tokens_per_message
        self._max_queued = max_queued
        self._max_req_len = max_req_len
        self._live: dict[str, _Live] = {}
        self._exited: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self.run, daemon=True)
        if channels is None:
            self._thread.start()

    @property
    def num_live(self) -> int:
        """Requests that the scheduler still holds."""
        return len(self._live)

    def die(self) -> None:
        """From now on the stage looks killed and answers nothing."""
        self._stop.set()
        self._exited = ["stage 0 (pid 1) was killed by SIGKILL"]

    def ended_in_order(self) -> bool:
        return False

    def exited(self) -> list[str]:
        """Phrases for dead stages."""
        return self._exited

    async def join(self, timeout_seconds: float) -> bool:
        """Wait for the thread."""
        await asyncio.to_thread(self._thread.join, timeout_seconds)
        return not self._thread.is_alive()

    async def stop(self, grace_seconds: float = 5.0) -> None:
        """End the thread."""
        self._stop.set()
        await self.join(grace_seconds)

    def run(self) -> None:
        """Serve until told to stop."""
        self.to_frontend.send(StageReady(0, {"pp_rank": 0, "max_req_len": self._max_req_len}))
        last_stats = 0.0
        while not self._stop.is_set():
            if time.monotonic() - last_stats > 0.2:
                last_stats = time.monotonic()
                gauges = {"num_running_reqs": float(len(self._live)), "token_usage": 0.0}
                self.to_frontend.send(SchedulerStats(gauges, {"num_retractions": 0.0}))
            self.to_scheduler.poll(0 if self._live else 20)
            while (message := self.to_scheduler.recv_nowait()) is not None:
                self.received.append(message)
                self._take(message)
            outs = [out for live in list(self._live.values()) if (out := self._step(live))]
            if outs:
                self.to_frontend.send(BatchTokenOut(outs))
                time.sleep(self.token_delay)

    def _take(self, message: Any) -> None:
        if isinstance(message, TokenizedGenerateReqInput):
            if self._max_queued is not None and len(self._live) > self._max_queued:
                reason = FinishReason(
                    "abort", message="The request queue is full.", status_code=503
                )
                out = TokenOut(message.rid, [], len(message.input_ids), 0, finish_reason=reason)
                self.to_frontend.send(BatchTokenOut([out]))
            else:
                self._live[message.rid] = _Live(message)
        elif isinstance(message, AbortReq):
            self._abort(message)
        elif isinstance(message, ControlReq):
            ok = message.op != "flush_cache" or not self._live
            text = "" if ok else f"{len(self._live)} requests are running"
            self.to_frontend.send(ControlReply(message.id, ok, text, {"num_live": len(self._live)}))
            if message.op == "shutdown":
                self._stop.set()

    def _abort(self, message: AbortReq) -> None:
        rids = list(self._live) if message.abort_all else [message.rid]
        for rid in rids:
            if (live := self._live.pop(rid, None)) is not None and not message.finish:
                reason = FinishReason("abort", message=message.message)
                out = TokenOut(rid, [], len(live.request.input_ids), 0, finish_reason=reason)
                self.to_frontend.send(BatchTokenOut([out]))

    def _step(self, live: _Live) -> TokenOut | None:
        request = live.request
        prompt, params = request.input_ids, request.sampling_params
        out = TokenOut(request.rid, [], len(prompt), 0)
        if request.logprob_start_len >= 0 and live.num_out == 0:
            out.input_logprobs = [
                TokenLogprobs(t, None if i == 0 else -0.5, [(-0.5, t)])
                for i, t in enumerate(prompt)
            ][request.logprob_start_len :]
        assert params.max_new_tokens is not None
        while len(out.token_ids) < self._tokens_per_message and out.finish_reason is None:
            if live.num_out >= params.max_new_tokens:
                out.finish_reason = FinishReason("length", length=live.num_out)
                break
            token = prompt[live.num_out % len(prompt)]
            live.num_out += 1
            out.token_ids.append(token)
            if request.return_logprob:
                top = [(-0.25, token), (-2.0, 0)][: request.top_logprobs_num]
                out.logprobs.append(TokenLogprobs(token, -0.25, top))
            stops = params.stop_token_ids + ([] if params.ignore_eos else list(self._eos))
            if token in stops:
                out.finish_reason = FinishReason("stop", matched=token)
            elif live.num_out >= params.max_new_tokens:
                out.finish_reason = FinishReason("length", length=live.num_out)
        if out.finish_reason is not None:
            self._live.pop(request.rid, None)
        return out
