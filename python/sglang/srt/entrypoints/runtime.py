"""A running model: stage processes plus tokenizer manager. HTTP server and `Engine` share it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any, Literal, Protocol

from sglang.srt.entrypoints.heartbeats import Heartbeats
from sglang.srt.managers.io_struct import SchedulerStats, StageAlive, StageFailed, StageReady
from sglang.srt.managers.request_state import GenerateInput, RequestError
from sglang.srt.managers.tokenizer_manager import ModelFacts, RequestObserver, TokenizerManager
from sglang.srt.managers.transport import AsyncReceiver, Sender
from sglang.srt.models.config import gguf_folder
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.server_args import ServerArgs
from sglang.srt.utils.hf_tokenizer import HfTokenizer

logger = logging.getLogger(__name__)

JOIN_SECONDS = 3.0  # for stages to end by themselves
KILL_SECONDS = 5.0  # between asking by signal and killing
_WATCH_SECONDS = 0.2
# After the first sign of a failure, the time in which others may add what they know of it.
_FAILURE_SETTLE_SECONDS = 0.4
_WARMUP_TOKENS = 8
_TABLE_COLUMNS = (
    ("stage", "pp_rank"),
    ("layers", "layers"),
    ("attention", "num_attention_layers"),
    ("linear", "num_linear_layers"),
    ("device", "device"),
    ("KV slots", "max_total_num_tokens"),
    ("Mamba slots", "max_mamba_cache_size"),
    ("requests", "max_running_requests"),
    ("chunk", "chunked_prefill_size"),
)

State = Literal["starting", "ready", "stopping", "failed"]


class LaunchError(RuntimeError):
    """The server can't start or go on; the message is one line."""


class Stages(Protocol):
    """What runs the model. `StageProcesses` is one; tests have one that is a thread."""

    pp_ranks: list[int]

    def exited(self) -> list[str]:
        """A phrase for each stage that has ended."""

    def ended_in_order(self) -> bool:
        """Whether all have ended as they should."""

    async def join(self, timeout_seconds: float) -> bool:
        """Wait for all stages to end; False when the time is over."""

    async def stop(self, grace_seconds: float = 5.0) -> None:
        """End all stages."""


class Runtime:
    """Owns the stages, the channels to them and the tokenizer manager. One event loop."""

    def __init__(
        self,
        server_args: ServerArgs,
        model: ModelFacts,
        stages: Stages,
        sender: Sender,
        receiver: AsyncReceiver,
        observer: RequestObserver | None = None,
        tokenizer: HfTokenizer | None = None,
    ) -> None:
        """Without `tokenizer` the one of the model folder is loaded in `start`."""
        self.server_args = server_args
        self.model = model
        self.state: State = "starting"
        self.failure: str | None = None
        self.stage_reports: dict[int, dict[str, Any]] = {}
        self._stages = stages
        self._sender = sender
        self._receiver = receiver
        self._observer = observer
        self._tokenizer = tokenizer
        self._manager: TokenizerManager | None = None
        self._failure_notes: list[str] = []
        self._heartbeats: Heartbeats | None = None  # from the moment all stages are ready
        self._failed = asyncio.Event()
        self._ended = asyncio.Event()
        self._all_ready = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def manager(self) -> TokenizerManager:
        """The tokenizer manager. Raises RequestError 503 while the server is starting."""
        if self._manager is None:
            raise RequestError("the server is starting", 503)
        return self._manager

    @property
    def is_healthy(self) -> bool:
        """Ready, and every stage gave a sign of life within the watchdog's time."""
        return self.state == "ready" and not self._stuck()

    async def start(self) -> None:
        """Wait until all stages are ready and have answered a warm-up request.

        Raises LaunchError with what a stage said, TokenizerError for the tokenizer.
        """
        self._tasks = [
            asyncio.create_task(self._receive()),
            asyncio.create_task(self._watch()),
        ]
        for task in self._tasks:
            task.add_done_callback(self._on_task_end)
        args = self.server_args
        tokenizer = self._tokenizer
        if tokenizer is None:
            loading = asyncio.to_thread(_load_tokenizer, args)
            tokenizer = await self._or_failure(loading)
        await self._or_failure(self._all_ready.wait())
        manager = TokenizerManager(
            self.model, tokenizer, self._sender, args.stream_interval, self._observer
        )
        first_report = self.stage_reports.get(0, {})
        manager.max_req_len = min(
            self.model.context_len, int(first_report.get("max_req_len", self.model.context_len))
        )
        self._manager = manager
        logger.info("Stages are ready:\n%s", stage_table(self.stage_reports))
        self._heartbeats = Heartbeats(
            self._stages.pp_ranks, args.watchdog_timeout, time.monotonic()
        )
        if not args.skip_server_warmup and 0 in self.stage_reports:
            await self._or_failure(self._warm_up(manager))
        self.state = "ready"

    async def wait_failed(self) -> str:
        """Wait until a stage ends, fails or falls silent; returns one line that names it."""
        await self._failed.wait()
        assert self.failure is not None
        return self.failure

    async def wait_ended(self) -> None:
        """Wait until stage 0, on another machine, has ended the pipeline in order."""
        await self._ended.wait()

    def refuse_requests(self, reason: str) -> None:
        """From now on new requests are answered with 503."""
        if self.state != "failed":
            self.state = "stopping"
        if self._manager is not None:
            self._manager.refuse_with = reason

    async def drain(self, timeout_seconds: float, give_up: Callable[[], bool]) -> None:
        """Let running requests end, at most `timeout_seconds`; the rest is answered with 503."""
        deadline = time.monotonic() + timeout_seconds
        manager = self._manager
        while manager is not None and manager.num_live:
            if time.monotonic() > deadline or give_up() or self._failed.is_set():
                manager.fail_all("the server is shutting down", 503)
                return
            await asyncio.sleep(_WATCH_SECONDS / 4)

    async def stop(self, in_order: bool = True) -> None:
        """End the stages: `in_order` by a call while the scheduler answers, otherwise by signal."""
        has_scheduler = self._manager is not None and 0 in self._stages.pp_ranks
        if in_order and has_scheduler and self.failure is None:
            assert self._manager is not None
            try:
                await self._manager.control("shutdown", timeout_seconds=2.0)
                await self._stages.join(JOIN_SECONDS)
            except RequestError:
                logger.warning("the scheduler did not answer the call to shut down")
        await self._stages.stop(KILL_SECONDS)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._sender.close()
        self._receiver.close()

    async def _receive(self) -> None:
        while True:
            message = await self._receiver.recv()
            if isinstance(message, StageReady):
                self.stage_reports[message.pp_rank] = message.report
                if all(rank in self.stage_reports for rank in self._stages.pp_ranks):
                    self._all_ready.set()
            elif isinstance(message, StageFailed):
                self._failure_notes.append(f"stage {message.pp_rank}: {message.message}")
            elif isinstance(message, StageAlive):
                self._beat(message.pp_rank, message.doing, message.seconds)
            elif self._manager is not None:
                if isinstance(message, SchedulerStats):
                    self._beat(0)
                self._manager.handle(message)

    def _beat(self, pp_rank: int, doing: str = "", busy_seconds: float = 0.0) -> None:
        if self._heartbeats is not None:
            self._heartbeats.beat(pp_rank, time.monotonic(), doing, busy_seconds)

    def _stuck(self) -> list[str]:
        return [] if self._heartbeats is None else self._heartbeats.stuck(time.monotonic())

    async def _watch(self) -> None:
        """Sets `failure` once, at the first sign of one."""
        while not (self._failure_notes or self._stages.exited() or self._stuck()):
            await asyncio.sleep(_WATCH_SECONDS)
        if self.state == "stopping":
            return
        await asyncio.sleep(_FAILURE_SETTLE_SECONDS)
        if self.server_args.node_rank > 0 and self._stages.ended_in_order():
            self.state = "stopping"
            self._ended.set()
            return
        # A stage that was killed explains what the others complain of.
        exits = self._stages.exited()
        causes = [phrase for phrase in exits if "killed" in phrase] or self._failure_notes or exits
        self.fail("; ".join(causes or self._stuck() or ["a stage was stuck for a while"]))

    def fail(self, reason: str) -> None:
        """Mark the runtime as failed and answer every request with the reason."""
        if self.failure is not None:
            return
        self.failure = reason
        self.state = "failed"
        if self._manager is not None:
            self._manager.refuse_with = reason
            self._manager.fail_all(reason, 500)
        self._failed.set()

    def _on_task_end(self, task: asyncio.Task[None]) -> None:
        """A bug or a foreign frame ends the receive loop: then nobody would be answered."""
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("the front end failed", exc_info=error)
            self.fail(f"the front end failed: {type(error).__name__}: {error}")

    async def _or_failure(self, awaitable: Any) -> Any:
        """The result of `awaitable`. Raises LaunchError if the runtime fails meanwhile."""
        work = asyncio.ensure_future(awaitable)
        failed = asyncio.ensure_future(self._failed.wait())
        try:
            await asyncio.wait((work, failed), return_when=asyncio.FIRST_COMPLETED)
            if self.failure is not None:
                raise LaunchError(self.failure)
            return work.result()
        finally:
            failed.cancel()
            work.cancel()

    async def _warm_up(self, manager: TokenizerManager) -> None:
        started = time.monotonic()
        num_tokens = max(1, min(_WARMUP_TOKENS, manager.max_req_len - 1))
        params = SamplingParams(
            max_new_tokens=num_tokens, temperature=0.0, ignore_eos=True, sampling_seed=0
        )
        item = GenerateInput(params, input_ids=[0], clamp_max_new_tokens=True)
        try:
            async with manager.submit([item]) as generations:
                await generations[0].result()
            # The first client finds the pools as empty as the profile left them.
            await manager.control("flush_cache")
        except RequestError as error:
            raise LaunchError(f"the warm-up request failed: {error.message}") from None
        logger.info("Warm-up request answered in %.2f s", time.monotonic() - started)


def _load_tokenizer(args: ServerArgs) -> HfTokenizer:
    path = args.tokenizer_path or args.model_path
    return HfTokenizer.from_path(str(gguf_folder(path) or path), args.chat_template)


def stage_table(reports: dict[int, dict[str, Any]]) -> str:
    """One row for each stage's report, then the chunking mode; columns that no report has are
    left out."""
    columns = [column for column in _TABLE_COLUMNS if any(column[1] in r for r in reports.values())]
    rows = [[title for title, _ in columns]]
    for _, report in sorted(reports.items()):
        rows.append([str(report.get(key, "-")) for _, key in columns])
    widths = [max(len(row[i]) for row in rows) for i in range(len(columns))]
    lines = ("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) for row in rows)
    table = "\n".join("  " + line.rstrip() for line in lines)
    chunking = reports.get(0, {}).get("dynamic_chunking")
    return f"{table}\n  chunking: {chunking['mode']}" if chunking else table
