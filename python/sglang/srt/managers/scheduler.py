"""The scheduler of stage 0: owns every request, slot and decision."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sglang.srt.managers import schedule_policy as policy
from sglang.srt.managers.batch_planner import BatchPlanner, PlannerLimits
from sglang.srt.managers.batch_result import ResultProcessor
from sglang.srt.managers.chunk_refit import ChunkRefitter
from sglang.srt.managers.chunk_sizer import ChunkSizePredictor, StaticChunkBudget
from sglang.srt.managers.grammar_manager import GrammarBackend, GrammarError, GrammarManager
from sglang.srt.managers.io_struct import (
    AbortReq,
    BatchTokenOut,
    ControlReply,
    ControlReq,
    FinishReason,
    TokenizedGenerateReqInput,
    TokenOut,
)
from sglang.srt.managers.microbatch_ring import MicrobatchRing
from sglang.srt.managers.pipeline import Pipeline
from sglang.srt.managers.pp_trace import PipelineTrace
from sglang.srt.managers.req_memory import ReqMemory
from sglang.srt.managers.runtime_checker import MemoryViolation, check_memory, pool_counts, repair
from sglang.srt.managers.schedule_batch import Req, ReqStatus, ScheduleBatch
from sglang.srt.managers.scheduler_metrics import SchedulerMetrics
from sglang.srt.managers.scheduler_pp_mixin import SchedulerPPMixin
from sglang.srt.managers.transport import Receiver, Sender

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SchedulerConfig:
    """The resolved numbers that the scheduler works with."""

    pp_size: int = 1
    pp_async_batch_depth: int = 0
    pp_max_micro_batch_size: int | None = None
    chunked_prefill_size: int | None = 512  # None: prompts are not chunked
    max_prefill_tokens: int = 16384
    max_running_requests: int = 64
    max_queued_requests: int | None = None
    max_req_len: int = 4096  # prompt + output of one request
    context_len: int = 4096
    vocab_size: int = 32000
    eos_token_ids: frozenset[int] = frozenset()
    schedule_policy: str = "fcfs"
    enable_mixed_chunk: bool = False
    enable_dynamic_chunking: bool = False
    smooth_factor: float = 0.75
    check_memory_every_step: bool = False
    watchdog_timeout_s: float = 300.0
    random_seed: int = 0
    profile_seconds: float = 6.0  # bound on the time of start-up profiling
    refit_from_live: bool = True  # spans of a running pipe are exact (not so on a GPU)
    server_info: dict[str, Any] = field(default_factory=dict)  # fixed part of the report


class Scheduler(SchedulerPPMixin):
    """Turns requests into plans and results into replies.

    All of it runs in one thread: messages, then results, then the next micro-batch. The loop
    itself is `SchedulerPPMixin.event_loop_pp`, for any number of stages.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        memory: ReqMemory,
        pipeline: Pipeline,
        receiver: Receiver,
        sender: Sender,
        trace: PipelineTrace | None = None,
        grammar_backend: GrammarBackend | None = None,
    ) -> None:
        self.config = config
        self.memory = memory
        self.pipeline = pipeline
        self.receiver = receiver
        self.sender = sender
        self.req_to_token_pool = memory.req_to_token_pool
        self.token_to_kv_pool_allocator = memory.token_to_kv_pool_allocator
        self.tree_cache = memory.tree_cache
        self.chunk_predictor: ChunkSizePredictor | None = None
        self.chunk_refitter: ChunkRefitter | None = None
        self.chunking_report: dict[str, Any] = {"enabled": False, "mode": "static", "reason": None}
        self.planner = BatchPlanner(
            memory,
            PlannerLimits(
                config.pp_size,
                config.max_running_requests,
                config.pp_max_micro_batch_size,
                config.enable_mixed_chunk,
                config.schedule_policy,
            ),
            StaticChunkBudget(config.chunked_prefill_size, config.max_prefill_tokens, memory.grid),
        )
        self.results = ResultProcessor(self.planner, self._forget)
        self.ring = MicrobatchRing(config.pp_size + config.pp_async_batch_depth)
        self.metrics = SchedulerMetrics(config.pp_size)
        self.trace = trace
        self.grammars = GrammarManager(grammar_backend)
        self.reqs: dict[str, Req] = {}
        self.borrowed: list[Req] = []  # temporary requests that hold slots (profiling)
        self.stopping = False
        self._arrivals = 0
        self._checked_idle = False
        self._controls: dict[str, Callable[[ControlReq], ControlReply]] = {
            "server_info": self._server_info,
            "cache_report": self._cache_report,
            "flush_cache": self._flush_cache,
            "shutdown": self._shutdown,
        }

    # -- messages --------------------------------------------------------------------------------

    def recv_requests(self) -> None:
        """Take in everything that the front end has sent."""
        while (message := self.receiver.recv_nowait()) is not None:
            self._checked_idle = False
            if isinstance(message, TokenizedGenerateReqInput):
                self.handle_generate_request(message)
            elif isinstance(message, AbortReq):
                self.abort_request(message)
            else:
                self.sender.send(self._controls[message.op](message))
        for req, problem in self.grammars.take_ready():
            if problem is None:
                self.planner.add(req)
            else:
                reason = FinishReason("abort", message=problem, status_code=400)
                self.sender.send(BatchTokenOut([self.results.finish(req, reason)]))

    def handle_generate_request(self, message: TokenizedGenerateReqInput) -> None:
        """Queue a request, or refuse it with a reason and an HTTP status."""
        req = self._new_req(message)
        if message.rid in self.reqs:
            self._refuse(message.rid, f"rid {message.rid!r} is in use", 400)
            return
        problem = policy.refusal(
            req.num_prompt, req.max_new_tokens, self.config.max_req_len, self.config.context_len
        )
        if (
            problem is None
            and not 0 <= min(message.input_ids) <= max(message.input_ids) < self.config.vocab_size
        ):
            problem = f"input_ids must be in [0, {self.config.vocab_size})"
        limit = self.config.max_queued_requests
        if problem is not None:
            self._refuse(message.rid, problem, 400)
        elif limit is not None and len(self.planner.waiting) + len(self.grammars) >= limit:
            self._refuse(message.rid, f"the queue is full (--max-queued-requests {limit})", 503)
        else:
            self._accept(req)

    def _accept(self, req: Req) -> None:
        if not req.sampling_params.has_grammar:
            self.planner.add(req)
        else:
            try:
                self.grammars.submit(req)
            except GrammarError as error:
                self._refuse(req.rid, str(error), 400)
                return
        self.reqs[req.rid] = req

    def abort_request(self, message: AbortReq) -> None:
        """End one request, or all of them, wherever they are; their slots come back at once."""
        if message.abort_all:
            targets = list(self.reqs.values())
        else:
            found = self.reqs.get(message.rid)
            targets = [] if found is None else [found]
        reason = FinishReason("abort", message=message.message)
        for req in targets:
            self.grammars.remove(req)
        outs = [self.results.finish(req, reason) for req in targets]
        self.metrics.aborted += len(outs)
        if outs and not message.finish:
            self.sender.send(BatchTokenOut(outs))

    def _new_req(self, message: TokenizedGenerateReqInput) -> Req:
        self._arrivals += 1
        owner = self.memory.owners.register(f"request {message.rid}")
        return Req.from_input(message, self._arrivals, owner, self.config.eos_token_ids)

    def _refuse(self, rid: str, problem: str, status: int) -> None:
        reason = FinishReason("abort", message=problem, status_code=status)
        self.sender.send(BatchTokenOut([TokenOut(rid, [], 0, 0, finish_reason=reason)]))

    def _forget(self, req: Req) -> None:
        self.reqs.pop(req.rid, None)
        assert req.finish_reason is not None
        self.metrics.on_finished(req)

    # -- micro-batches ---------------------------------------------------------------------------

    def launch_batch(self, batch: ScheduleBatch) -> None:
        """Issue a micro-batch; it occupies its ring slot until its result is processed."""
        batch.issued_at = time.monotonic()
        if self.chunk_predictor is not None and batch.num_decode_rows == 0:
            rows = [(row.start, row.end - row.start) for row in batch.rows]
            batch.predicted_seconds = self.chunk_predictor.seconds(rows)
        self.ring.push(batch)
        self.metrics.on_launch(batch, self)
        self.pipeline.submit(batch.plan)
        self._checked_idle = False
        if self.config.check_memory_every_step:
            self.check_memory()

    def collect_results(self, timeout_s: float = 0.0) -> bool:
        """Process the results that are back; whether there was one."""
        found = False
        while (result := self.pipeline.poll(0.0 if found else timeout_s)) is not None:
            found = True
            batch = self.ring.pop(result.seq)
            outs = self.results.process(batch, result)
            self.metrics.on_result(batch, result, outs)
            self.refit_predictor(batch, result)
            if self.trace is not None:
                self.trace.add(batch, result)
            if outs:
                self.sender.send(BatchTokenOut(outs))
            if self.config.check_memory_every_step:
                self.check_memory()
        return found

    # -- self-checks -----------------------------------------------------------------------------

    def live_reqs(self) -> list[Req]:
        """All requests that may hold slots."""
        return [*self.planner.running, *self.borrowed]

    def on_idle(self) -> None:
        """Nothing runs: the pools must add up. Checked once each time the server falls idle."""
        if not self._checked_idle:
            self.check_memory()
            self._checked_idle = True
            if self.trace is not None:
                self.trace.flush()

    def check_memory(self) -> None:
        """Both leak checks. With the check after every step any violation ends the server.

        Else leaked slots are logged, counted and put back; a slot with two users ends the server,
        since somebody's answer is already wrong.
        """
        try:
            check_memory(self.memory, self.live_reqs())
        except MemoryViolation as violation:
            logger.error("memory check failed: %s", violation)
            if self.config.check_memory_every_step or not violation.repairable:
                raise
            count = repair(self.memory, violation)
            self.metrics.leaked_slots += count
            logger.warning("%d leaked slot(s) were put back", count)
            check_memory(self.memory, self.live_reqs())

    # -- control ---------------------------------------------------------------------------------

    def pool_report(self) -> dict[str, dict[str, int]]:
        """Sizes of the pools by use."""
        return pool_counts(self.memory, self.live_reqs())

    def _server_info(self, request: ControlReq) -> ControlReply:
        counters = self.memory.counters
        body = {
            **self.config.server_info,
            "memory_pools": self.pool_report(),
            "dynamic_chunking": self.chunking_report,
            "num_running_reqs": len(self.planner.running),
            "num_queue_reqs": len(self.planner.waiting),
            "microbatches_in_flight": len(self.ring),
            "prompt_tokens": counters.prompt_tokens,
            "cached_tokens": counters.cached_tokens,
            "skipped_checkpoints": counters.skipped_checkpoints,
            "num_retractions": self.planner.num_retracted,
            "num_leaked_slots": self.metrics.leaked_slots,
            "cache": self.tree_cache.usage().counters,
        }
        return ControlReply(request.id, True, body=body)

    def _cache_report(self, request: ControlReq) -> ControlReply:
        holders = [
            {
                "rid": req.rid,
                "status": req.status.value,
                "req_slot": req.req_pool_idx,
                "mamba_slots": [
                    slot
                    for slot in (
                        req.mamba_pool_idx,
                        req.mamba_track_idx,
                        *(slot for _, slot in req.tracked),
                    )
                    if slot is not None
                ],
                "kv_tokens": req.kv_len,
                "kv_tokens_of_cache": req.protected_len,
            }
            for req in self.live_reqs()
        ]
        nodes = [
            {
                "node": node.id,
                "end": node.end,
                "tokens": len(node.key),
                "state_slot": node.state_slot,
                "locks": node.lock_ref,
            }
            for node in self.tree_cache.nodes()
        ]
        body = {"pools": self.pool_report(), "requests": holders, "tree": nodes}
        return ControlReply(request.id, True, body=body)

    def _flush_cache(self, request: ControlReq) -> ControlReply:
        busy = len(self.reqs)
        if busy:
            return ControlReply(
                request.id, False, f"the cache is in use: {busy} request(s) are running or queued"
            )
        self.tree_cache.reset()
        return ControlReply(request.id, True, "cache flushed")

    def _shutdown(self, request: ControlReq) -> ControlReply:
        self.stopping = True
        return ControlReply(request.id, True)

    # -- gauges ----------------------------------------------------------------------------------

    def num_decoding(self) -> int:
        """Requests that are generating."""
        return sum(req.status is ReqStatus.DECODING for req in self.planner.running)
