"""The server's schedule on a virtual clock.

`BatchPlanner`, `ResultProcessor`, `MicrobatchRing` and the chunk budgets are the server's own; only
time, layers and links are simulated. The loop is `SchedulerPPMixin.event_loop_pp`: messages, then
results, then one micro-batch, during whose part on stage 0 nothing else is decided.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from sglang.plan_pipeline.profile import Link
from sglang.plan_pipeline.stages import Job, Span, VirtualStages
from sglang.srt.managers.batch_planner import BatchPlanner, ChunkBudget, PlannerLimits
from sglang.srt.managers.batch_result import ResultProcessor
from sglang.srt.managers.chunk_sizer import (
    ChunkSizePredictor,
    DynamicChunkBudget,
    LatencyModel,
    StaticChunkBudget,
)
from sglang.srt.managers.io_struct import TokenOut
from sglang.srt.managers.microbatch_ring import MicrobatchRing
from sglang.srt.managers.req_memory import ReqMemory
from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
from sglang.srt.managers.schedule_policy import align_down, state_grid
from sglang.srt.managers.step_plan import StepResult, TokenResult
from sglang.srt.mem_cache.allocator import OwnerTable, TokenToKVPoolAllocator
from sglang.srt.mem_cache.chunk_cache import ChunkCache
from sglang.srt.mem_cache.memory_pool import HybridReqToTokenPool, MambaPool, ReqToTokenPool
from sglang.srt.sampling.sampling_params import SamplingParams

TOKEN = 3  # what the simulated model answers; any id


@dataclass(frozen=True)
class SimRequest:
    """A prompt of so many tokens at a time (seconds), to be answered with so many."""

    num_prompt: int
    arrival_s: float = 0.0
    max_new_tokens: int = 1


@dataclass(frozen=True)
class SimConfig:
    """One way to run the server. smooth None: static chunks."""

    models: tuple[LatencyModel, ...]
    chunk_size: int
    smooth: float | None = None
    has_states: bool = False
    page_size: int = 1
    max_prefill_tokens: int = 16384
    max_running: int = 64
    max_micro_batch: int | None = None
    mixed_chunk: bool = False
    async_depth: int = 0
    kv_tokens: int | None = None  # None: enough for all requests at once
    link: Link = field(default_factory=Link)
    activation_bytes_per_token: float = 0.0
    cores: int | None = None
    step_overhead_s: float = 0.0
    request_overhead_s: float = 0.0

    @property
    def pp_size(self) -> int:
        """Number of stages."""
        return len(self.models)


@dataclass(frozen=True)
class SimChunk:
    """One micro-batch that was run."""

    rows: tuple[tuple[str, int, int], ...]  # (request, start, end)
    spans: tuple[Span, ...]  # one a stage


@dataclass(frozen=True)
class SimResult:
    """What a simulated run gave; times in seconds."""

    time_to_first_token_s: tuple[float, ...]  # one a request, in the order given
    finished_s: tuple[float, ...]
    chunks: tuple[SimChunk, ...]
    num_prompt_tokens: int

    @property
    def makespan_s(self) -> float:
        """From the start of the first micro-batch to the last answer."""
        return max(self.finished_s) - self.chunks[0].spans[0].start

    @property
    def prompt_tokens_per_s(self) -> float:
        """Throughput in prompt tokens."""
        return self.num_prompt_tokens / self.makespan_s

    def bubble_fractions(self) -> list[float]:
        """Share of the time between first start and last end in which each stage stood still."""
        return bubble_fractions([chunk.spans for chunk in self.chunks])

    @property
    def bubble_fraction(self) -> float:
        """Mean over the stages."""
        fractions = self.bubble_fractions()
        return sum(fractions) / len(fractions)


def bubble_fractions(spans: Sequence[Sequence[Span]]) -> list[float]:
    """Idle share of each stage between the first start and the last end of all micro-batches."""
    begin = min(chunk[0].start for chunk in spans)
    end = max(chunk[-1].end for chunk in spans)
    stages = range(len(spans[0]))
    busy = [sum(chunk[s].end - chunk[s].start for chunk in spans) for s in stages]
    return [1 - b / (end - begin) for b in busy]


def chunk_budget(config: SimConfig, grid: int) -> ChunkBudget:
    """The budget that the server would use with these flags."""
    if config.smooth is None:
        return StaticChunkBudget(config.chunk_size, config.max_prefill_tokens, grid)
    base = max(grid, align_down(config.chunk_size, grid))
    return DynamicChunkBudget(
        ChunkSizePredictor(config.models, base, grid, config.max_prefill_tokens, config.smooth)
    )


def simulate(config: SimConfig, requests: Sequence[SimRequest]) -> SimResult:
    """Run requests to their end. Raises ValueError when one does not fit into `kv_tokens`."""
    return _Run(config, requests).run()


class _Run:
    def __init__(self, config: SimConfig, requests: Sequence[SimRequest]) -> None:
        self.config = config
        lengths = [r.num_prompt + r.max_new_tokens for r in requests]
        if not lengths or min(r.num_prompt for r in requests) < 1:
            raise ValueError("requests must be given, each of at least one token")
        if config.kv_tokens is not None and max(lengths) > config.kv_tokens:
            raise ValueError(
                f"a request needs {max(lengths)} tokens, kv_tokens is {config.kv_tokens}"
            )
        self.memory = build_memory(config, lengths)
        limits = PlannerLimits(
            config.pp_size, config.max_running, config.max_micro_batch, config.mixed_chunk, "fcfs"
        )
        self.planner = BatchPlanner(self.memory, limits, chunk_budget(config, self.memory.grid))
        self.results = ResultProcessor(self.planner, lambda req: None)
        self.ring = MicrobatchRing(config.pp_size + config.async_depth)
        self.stages = VirtualStages(
            config.models,
            config.link,
            config.activation_bytes_per_token,
            config.cores,
            config.step_overhead_s,
        )
        order = sorted(range(len(requests)), key=lambda i: requests[i].arrival_s)
        self.coming = [(requests[i], f"{i}") for i in order]
        self.requests = requests
        self.first: dict[str, float] = {}
        self.finished: dict[str, float] = {}
        self.chunks: list[SimChunk] = []

    def run(self) -> SimResult:
        while True:
            self._take_in()
            self._collect()
            if len(self.finished) == len(self.requests) and not len(self.ring):
                break
            slot = self.ring.free_slot
            batch = None if slot is None else self.planner.next_batch(slot)
            if batch is None:
                self.stages.wait(self._next_arrival())
            else:
                self._launch(batch)
        names = [str(i) for i in range(len(self.requests))]
        overhead = self.config.request_overhead_s
        return SimResult(
            tuple(
                self.first[n] - r.arrival_s + overhead
                for n, r in zip(names, self.requests, strict=True)
            ),
            tuple(self.finished[n] for n in names),
            tuple(self.chunks),
            sum(r.num_prompt for r in self.requests),
        )

    def _next_arrival(self) -> float:
        if self.coming:
            return self.coming[0][0].arrival_s
        assert self.ring.oldest is not None, "nothing runs, and nothing can start"
        return float("inf")

    def _take_in(self) -> None:
        while self.coming and self.coming[0][0].arrival_s <= self.stages.now:
            request, name = self.coming.pop(0)
            req = Req(
                name,
                np.full(request.num_prompt, TOKEN, dtype=np.int32),
                SamplingParams(max_new_tokens=request.max_new_tokens),
                arrival=len(self.requests) - len(self.coming),
                owner=self.memory.owners.register(name),
            )
            self.planner.add(req)

    def _launch(self, batch: ScheduleBatch) -> None:
        self.ring.push(batch)
        rows = [(row.start, row.end - row.start) for row in batch.rows]
        self.stages.submit(Job(batch.plan.seq, rows))

    def _collect(self) -> None:
        while (job := self.stages.poll()) is not None:
            batch = self.ring.pop(job.seq)
            rows = tuple((row.req.rid, row.start, row.end) for row in batch.rows)
            self.chunks.append(SimChunk(rows, tuple(job.spans)))
            tokens = [TokenResult(TOKEN)] * len(batch.plan.sample_rows)
            for out in self.results.process(batch, StepResult(job.seq, tokens)):
                self._answer(out)

    def _answer(self, out: TokenOut) -> None:
        if out.token_ids or out.finish_reason is not None:
            self.first.setdefault(out.rid, self.stages.now)
        if out.finish_reason is not None:
            self.finished[out.rid] = self.stages.now


def build_memory(config: SimConfig, lengths: Sequence[int]) -> ReqMemory:
    """Pools without tensors of layers. Prompts share nothing, so there is no prefix cache."""
    owners = OwnerTable()
    page = config.page_size
    size = config.kv_tokens or sum(-(-n // page) * page + page for n in lengths)
    slots = min(config.max_running, len(lengths))
    width = max(lengths) + page
    pool = ReqToTokenPool(slots, width, "cpu", owners)
    mamba = None
    if config.has_states:
        mamba = MambaPool(slots, {}, torch.float32, torch.float32, "cpu", owners)
        pool = HybridReqToTokenPool(slots, width, "cpu", owners, mamba)
    grid = state_grid(page, config.chunk_size, config.has_states)
    allocator = TokenToKVPoolAllocator(size, page, owners)
    return ReqMemory(owners, pool, allocator, ChunkCache(), mamba, grid, 0)
