"""The event loop of the pipeline, and the start-up profiling behind dynamic chunking."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm import tqdm

from sglang.srt.managers.chunk_refit import ChunkRefitter
from sglang.srt.managers.chunk_sizer import (
    ChunkSizePredictor,
    DynamicChunkBudget,
    FitError,
    LatencySample,
    ProfileRequest,
    fit_stages,
    profile_requests,
    well_determined,
)
from sglang.srt.managers.io_struct import BatchTokenOut, FinishReason
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.managers.schedule_policy import align_down
from sglang.srt.managers.step_plan import StageSpan, StepPlan, StepResult, pack_ints
from sglang.srt.mem_cache.allocator import IntArray
from sglang.srt.sampling.sampling_params import SamplingParams

if TYPE_CHECKING:
    from sglang.srt.managers.batch_planner import BatchPlanner
    from sglang.srt.managers.batch_result import ResultProcessor
    from sglang.srt.managers.grammar_manager import GrammarManager
    from sglang.srt.managers.microbatch_ring import MicrobatchRing
    from sglang.srt.managers.pipeline import Pipeline
    from sglang.srt.managers.req_memory import ReqMemory
    from sglang.srt.managers.schedule_batch import ScheduleBatch
    from sglang.srt.managers.scheduler import SchedulerConfig
    from sglang.srt.managers.scheduler_metrics import SchedulerMetrics
    from sglang.srt.managers.transport import Receiver, Sender
    from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator
    from sglang.srt.mem_cache.memory_pool import ReqToTokenPool

logger = logging.getLogger(__name__)

MAX_PROFILE_REQUESTS = 128  # as many as SGLang profiles
MIN_PROFILE_REQUESTS = 12
SLOW_PROFILE_FACTOR = 5
IDLE_POLL_MS = 1000
GRAMMAR_POLL_MS = 2  # while a grammar is being compiled


class ProfilingError(RuntimeError):
    """Start-up profiling could not be carried out; the server goes on with static chunks."""


class StageHung(RuntimeError):
    """A micro-batch has been in the pipe for longer than the watchdog allows."""


class SchedulerPPMixin:
    """What `Scheduler` does with the pipeline. State lives in the scheduler and its parts."""

    if TYPE_CHECKING:
        config: SchedulerConfig
        memory: ReqMemory
        pipeline: Pipeline
        planner: BatchPlanner
        results: ResultProcessor
        ring: MicrobatchRing
        metrics: SchedulerMetrics
        grammars: GrammarManager
        receiver: Receiver
        sender: Sender
        req_to_token_pool: ReqToTokenPool
        token_to_kv_pool_allocator: TokenToKVPoolAllocator
        chunk_predictor: ChunkSizePredictor | None
        chunk_refitter: ChunkRefitter | None
        chunking_report: dict[str, Any]
        borrowed: list[Req]
        stopping: bool

        def recv_requests(self) -> None: ...
        def collect_results(self, timeout_s: float = 0.0) -> bool: ...
        def launch_batch(self, batch: ScheduleBatch) -> None: ...
        def on_idle(self) -> None: ...
        def check_memory(self) -> None: ...

    # -- the loop --------------------------------------------------------------------------------

    def event_loop_pp(self) -> None:
        """Serve until told to stop.

        Timetable of two stages and one long prompt (n: micro-batch number):

            stage 0   1 2 3 4 . .
            stage 1     1 2 3 4 .

        Each turn takes in messages (so that an abort is applied before the results it is about),
        then results, then issues one micro-batch if a ring slot is free. Issuing runs stage 0's
        own layers; the others work meanwhile. A chunk needs nothing from the chunk before it but
        its place in the order, so one prompt alone fills the pipe; a decode row waits for its
        token, which `Req.token_in_flight` says.
        """
        while not self.stopping:
            self.recv_requests()
            self.collect_results()
            slot = self.ring.free_slot
            batch = None if slot is None else self.planner.next_batch(slot)
            if batch is not None:
                self.launch_batch(batch)
            elif not self.stopping:
                self._wait_for_work()
            stats = self.metrics.heartbeat(self)  # type: ignore[arg-type]
            if stats is not None:
                self.sender.send(stats)

    def _wait_for_work(self) -> None:
        """Sleep until a message or a result comes."""
        fd = self.pipeline.fileno()
        oldest = self.ring.oldest
        if oldest is None:
            self.on_idle()
            self._refuse_stuck()
            if self.planner.waiting:
                return
            self.receiver.poll(GRAMMAR_POLL_MS if len(self.grammars) else IDLE_POLL_MS)
            return
        if fd < 0:
            return  # one stage: the result is there already
        self.receiver.poll(IDLE_POLL_MS, (fd,))
        age = time.monotonic() - oldest.issued_at
        if age > self.config.watchdog_timeout_s:
            raise StageHung(
                f"micro-batch {oldest.plan.seq} (slot {oldest.plan.mb_slot}) is out {age:.0f} s "
                f"(--watchdog-timeout {self.config.watchdog_timeout_s:g}); awaited: its result "
                f"from stage {self.config.pp_size - 1}"
            )

    def _refuse_stuck(self) -> None:
        """Nothing runs, nothing is in flight, and the first request in line still cannot start.

        Nothing will ever change that, so it is told, rather than left waiting.
        """
        if not self.planner.waiting or self.planner.running:
            return
        req = self.planner.waiting[0]
        message = (
            f"the request cannot start although nothing runs: it has {req.num_tokens} tokens, "
            f"{self.memory.reclaimable_tokens()} KV tokens and "
            f"{self.req_to_token_pool.available_size()} request slots are free"
        )
        logger.error("request %s: %s", req.rid, message)
        reason = FinishReason("abort", message=message, status_code=503)
        self.sender.send(BatchTokenOut([self.results.finish(req, reason)]))

    # -- dynamic chunking ------------------------------------------------------------------------

    def predict_next_chunk_size(self, prefix_len: int) -> int | None:
        """Tokens of a prompt chunk after `prefix_len` cached ones; None with static chunks."""
        if self.chunk_predictor is None:
            return None
        return self.chunk_predictor.predict_next_chunk_size(prefix_len)

    def profile_and_init_predictor(self) -> None:
        """Measure prefill chunks on every stage and switch dynamic chunking on.

        Runs before the first request. Up to 128 synthetic requests of random tokens, fewer once
        the fit is certain or the time is up. Whatever fails on whatever stage, everything borrowed
        is given back, every stage goes on, and the server comes up with static chunks.
        """
        started = time.monotonic()
        try:
            predictor, num_requests = self._profile_and_fit()
        except (ProfilingError, FitError) as error:
            self.chunking_report = {"enabled": False, "mode": "static", "reason": str(error)}
            logger.warning("[PP Dynamic Chunk] Dynamic chunking will be disabled: %s", error)
            return
        finally:
            self.check_memory()
        seconds = time.monotonic() - started
        self.chunk_predictor = predictor
        self.planner.budget = DynamicChunkBudget(predictor)
        if self.config.refit_from_live:
            self.chunk_refitter = ChunkRefitter(predictor, time.monotonic())
        self.chunking_report = {
            "enabled": True,
            "mode": "dynamic",
            "reason": None,
            "num_profile_requests": num_requests,
            "profile_seconds": round(seconds, 3),
            "num_refits": 0,
            **predictor.report(),
        }
        for stage, model in enumerate(predictor.models):
            logger.info(
                "[PP Dynamic Chunk] stage %d: t(L, x) = %.4g + %.4g L + %.4g x + %.4g (2Lx + x^2), "
                "error %.1f %%, %d samples",
                stage, model.c, model.g, model.b, model.a, 100 * model.mape, model.num_samples,
            )  # fmt: skip
        logger.info(
            "[PP Dynamic Chunk] Predictor ready: %d requests in %.1f s, base chunk %d, smooth "
            "factor %g", num_requests, seconds, predictor.base, predictor.smooth,
        )  # fmt: skip

    def refit_predictor(self, batch: ScheduleBatch, result: StepResult) -> None:
        """Take a prefill micro-batch's timing in; follow a new model if it called for one."""
        if self.chunk_refitter is None or batch.num_decode_rows or not batch.rows:
            return
        outcome = self.chunk_refitter.observe(
            [(row.start, row.end - row.start) for row in batch.rows],
            [span.seconds for span in result.stage_spans],
            time.monotonic(),
        )
        if outcome is None:
            return
        logger.info(
            "[PP Dynamic Chunk] Predictions were off by %.0f %% (median of live timings); a new "
            "fit to %d micro-batches: %.0f %%, %s",
            100 * outcome.error_before, outcome.num_samples, 100 * outcome.error_after,
            "not better, kept the old one" if outcome.predictor is None else "taken",
        )  # fmt: skip
        if outcome.predictor is not None:
            self.chunk_predictor = outcome.predictor
            self.planner.budget = DynamicChunkBudget(outcome.predictor)
            self.chunking_report |= outcome.predictor.report()
            self.chunking_report["num_refits"] = self.chunk_refitter.num_refits

    def _profile_and_fit(self) -> tuple[ChunkSizePredictor, int]:
        config = self.config
        if config.chunked_prefill_size is None:
            raise ProfilingError("chunked prefill is off (--chunked-prefill-size -1)")
        grid = self.memory.grid
        base = max(grid, align_down(config.chunked_prefill_size, grid))
        # Room for one request: what is free, less nothing: nobody else runs yet.
        max_tokens = min(
            self.token_to_kv_pool_allocator.available_size(), config.max_req_len, 16 * base
        )
        requests = profile_requests(
            base, max_tokens, min(config.max_prefill_tokens, max_tokens), MAX_PROFILE_REQUESTS
        )
        rng = np.random.default_rng(config.random_seed)
        self._profile_request(requests[0], rng)  # the first forward is cold; it is not a sample
        samples: list[list[LatencySample]] = [[] for _ in range(config.pp_size)]
        warm = time.monotonic()
        progress = tqdm(requests, desc="Profiling prefill latency for dynamic chunking")
        done = 0
        for request in progress:
            for stage, measured in enumerate(self._profile_request(request, rng)):
                samples[stage].extend(measured)
            done += 1
            if done >= MIN_PROFILE_REQUESTS and well_determined(samples):
                break
            spent = time.monotonic() - warm
            # A slow machine gets some more time, as long as there is no fit at all.
            fits = well_determined(samples, tolerance=math.inf)
            if spent > config.profile_seconds * (1 if fits else SLOW_PROFILE_FACTOR):
                break
        progress.close()
        predictor = ChunkSizePredictor(
            fit_stages(samples), base, grid, config.max_prefill_tokens, config.smooth_factor
        )
        return predictor, done

    def _profile_request(
        self, request: ProfileRequest, rng: np.random.Generator
    ) -> list[list[LatencySample]]:
        """Run one synthetic request chunk by chunk; the samples of each stage.

        The request takes a request slot, a Mamba slot on a hybrid model and KV as any other, and
        gives them back here, in plain sight, whatever happens.
        """
        ids = rng.integers(0, self.config.vocab_size, request.num_tokens, dtype=np.int32)
        owner = self.memory.owners.register("profiler")
        req = Req("profiler", ids, SamplingParams(max_new_tokens=0), arrival=0, owner=owner)
        if not self.req_to_token_pool.alloc(req):
            raise ProfilingError(f"{self._shortage()} for a profiling request")
        self.borrowed.append(req)
        try:
            return self._run_profile_chunks(req, request)
        finally:
            kv_indices = self.req_to_token_pool.rows[req.req_pool_idx, : req.kv_len].copy()
            self.token_to_kv_pool_allocator.free(kv_indices, req.owner)
            if req.mamba_pool_idx is not None:
                self.req_to_token_pool.free_mamba_cache(req)
            self.req_to_token_pool.free(req)
            self.borrowed.remove(req)

    def _run_profile_chunks(self, req: Req, request: ProfileRequest) -> list[list[LatencySample]]:
        samples: list[list[LatencySample]] = [[] for _ in range(self.config.pp_size)]
        for num_tokens in request.chunks:
            start = req.num_computed
            slots = self.memory.extend(req, start + num_tokens)
            if slots is None:
                raise ProfilingError(f"no KV slots for {num_tokens} tokens after {start}")
            spans = self._measure(self._profile_plan(req, start, slots))
            req.num_computed = start + num_tokens
            for stage, span in enumerate(spans):
                samples[stage].append(LatencySample(start, num_tokens, span.seconds))
        return samples

    def _profile_plan(self, req: Req, start: int, slots: IntArray) -> StepPlan:
        assert req.req_pool_idx is not None
        mamba = [] if req.mamba_pool_idx is None else [req.mamba_pool_idx]
        return StepPlan(
            seq=self.planner.next_seq(),
            mb_slot=0,
            num_decode_rows=0,
            req_pool_indices=[req.req_pool_idx],
            prefix_lens=[start],
            extend_lens=[len(slots)],
            mamba_indices=mamba,
            sample_rows=[],
            input_ids=pack_ints(req.tokens[start : start + len(slots)]),
            out_cache_loc=pack_ints(slots),
            zero_states=mamba if start == 0 else [],
            measure=True,
            tolerate_errors=True,
        )

    def _measure(self, plan: StepPlan) -> Sequence[StageSpan]:
        self.pipeline.submit(plan)
        result: StepResult | None = self.pipeline.poll(self.config.watchdog_timeout_s)
        if result is None:
            raise StageHung(
                f"profiling: no result of micro-batch {plan.seq} from stage "
                f"{self.config.pp_size - 1} within {self.config.watchdog_timeout_s:g} s"
            )
        if result.error:
            raise ProfilingError(f"a stage failed while profiling: {result.error}")
        return result.stage_spans

    def _shortage(self) -> str:
        pool = self.memory.mamba_pool
        if pool is not None and self.req_to_token_pool.available_size() > 0:
            return f"Not enough space for mamba cache (available_size()={pool.available_size()})"
        return "no request slot is free"
