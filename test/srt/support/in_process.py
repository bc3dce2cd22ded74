"""A real scheduler over real stages, all in this process: no sockets, no processes."""

from __future__ import annotations

import copy
from collections import deque
from functools import lru_cache
from pathlib import Path
from typing import Any

from sglang.srt.distributed.layer_split import split_layers
from sglang.srt.distributed.parallel_state import PipelineGroup
from sglang.srt.managers.chunk_sizer import ChunkSizePredictor, DynamicChunkBudget, LatencyModel
from sglang.srt.managers.io_struct import (
    AbortReq,
    BatchTokenOut,
    FinishReason,
    TokenizedGenerateReqInput,
)
from sglang.srt.managers.scheduler import Scheduler, SchedulerConfig
from sglang.srt.managers.stage_builder import build_memory, grammar_backend, has_states
from sglang.srt.managers.step_plan import StageSpan, StepPlan, StepResult
from sglang.srt.mem_cache.sizing import PoolSizes
from sglang.srt.model_executor.model_runner import ModelRunner
from sglang.srt.model_executor.output_builder import OutputBuilder
from sglang.srt.models.config import ModelConfig
from sglang.srt.platform import Platform
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.server_args import ServerArgs

from .scheduler_harness import Inbox

# What a pool holds where nothing was written: any use of it changes the tokens.
POISON = 37.0

# A made-up machine on which attention is dear: chunks shrink within a few hundred tokens.
STEEP = LatencyModel(a=1e-7, b=1e-5, c=1e-4, g=1e-7)


@lru_cache(maxsize=16)
def _loaded(folder: str, layers: tuple[int, int], load_format: str, dtype: str) -> ModelRunner:
    runner = ModelRunner(ModelConfig.from_path(folder, dtype=dtype), layers, Platform("cpu"))
    runner.load(load_format, 0)
    return runner


def stage_runner(
    folder: Path | str,
    layers: tuple[int, int],
    load_format: str = "auto",
    dtype: str = "auto",
) -> ModelRunner:
    """A runner of its own over weights that are loaded once for all tests."""
    runner = copy.copy(_loaded(str(folder), layers, load_format, dtype))
    if runner._output is not None:
        runner._output = OutputBuilder(runner.config.vocab_size)
    return runner


class ChainedPipeline:
    """Stages called one after another; results come back `pp_size - 1` polls late."""

    def __init__(self, runners: list[ModelRunner]) -> None:
        self._runners = runners
        self._pending: deque[StepPlan] = deque()
        self._waited = 0
        self.plans: list[StepPlan] = []

    def submit(self, plan: StepPlan) -> None:
        """Queue a plan."""
        self.plans.append(plan)
        self._pending.append(plan)

    def poll(self, timeout_s: float) -> StepResult | None:
        """The oldest plan's result; plans run when it is due, in order."""
        if not self._pending:
            return None
        if timeout_s == 0 and self._waited < len(self._runners) - 1:
            self._waited += 1
            return None
        self._waited = 0
        plan = self._pending.popleft()
        out: Any = None
        for runner in self._runners:
            out = runner.execute(plan, out)
        assert isinstance(out, StepResult)
        spans = [StageSpan(0.0, 0.0, 1e-3)] * len(self._runners)
        return StepResult(plan.seq, out.tokens, spans, "", out.input_logprobs)

    def fileno(self) -> int:
        """Nothing to wait for."""
        return -1


class InProcessServer:
    """Flags in, greedy tokens out, with the memory check after every step."""

    def __init__(
        self,
        folder: Path | str,
        *,
        partition: str | None = None,
        max_total_tokens: int = 2048,
        max_mamba_cache_size: int = 24,
        max_running_requests: int = 6,
        dynamic: bool = False,
        **flags: Any,
    ) -> None:
        """`partition`: layers of each stage ("1,3"); `dynamic`: chunk sizes by `STEEP`."""
        args = ServerArgs(
            model_path=str(folder),
            max_total_tokens=max_total_tokens,
            max_mamba_cache_size=max_mamba_cache_size,
            max_running_requests=max_running_requests,
            device="cpu",
            **{"chunked_prefill_size": 64, **flags},
        ).resolve()
        model = ModelConfig.from_path(str(folder))
        ranges = split_layers([1.0] * model.num_layers, args.pp_size, 0.0, partition)
        states = max_mamba_cache_size if has_states(model) else 0
        sizes = PoolSizes(max_total_tokens, states, max_running_requests)
        self.runners = [
            stage_runner(folder, layers, args.load_format, args.dtype) for layers in ranges
        ]
        memories = []
        for runner, layers in zip(self.runners, ranges, strict=True):
            memories.append(build_memory(args, model, sizes, runner, layers))
            _poison(runner)
        self.memory = memories[0]
        self.group = PipelineGroup(0, args.pp_size)
        self.inbox = Inbox()
        chunk = args.chunked_prefill_size
        self.pipeline = ChainedPipeline(self.runners)
        self.scheduler = Scheduler(
            SchedulerConfig(
                pp_size=args.pp_size,
                pp_async_batch_depth=args.pp_async_batch_depth,
                pp_max_micro_batch_size=args.pp_max_micro_batch_size,
                chunked_prefill_size=chunk if chunk and chunk > 0 else None,
                max_prefill_tokens=args.max_prefill_tokens,
                max_running_requests=max_running_requests,
                max_req_len=min(model.context_len, max_total_tokens),
                context_len=model.context_len,
                vocab_size=model.vocab_size,
                eos_token_ids=frozenset(),
                enable_mixed_chunk=args.enable_mixed_chunk,
                check_memory_every_step=True,
            ),
            self.memory,
            self.pipeline,
            self.inbox,
            self.inbox,
            grammar_backend=grammar_backend(args, model),
        )
        if dynamic:
            self._use_latency_model(args)
        self.tokens: dict[str, list[int]] = {}
        self.cached: dict[str, int] = {}
        self.finished: dict[str, FinishReason] = {}
        self.input_logprobs: dict[str, list[Any]] = {}
        self.logprobs: dict[str, list[Any]] = {}

    def add(self, rid: str, ids: list[int], max_new: int, params: Any = None, **kw: Any) -> None:
        """Send a request (greedy unless `params` says otherwise)."""
        sampling = params or SamplingParams(max_new_tokens=max_new, temperature=0)
        self.tokens[rid], self.logprobs[rid], self.input_logprobs[rid] = [], [], []
        self.inbox.messages.append(TokenizedGenerateReqInput(rid, ids, sampling, **kw))

    def abort(self, rid: str) -> None:
        """Abort a request, as when its client is gone."""
        self.inbox.messages.append(AbortReq(rid))

    def step(self) -> None:
        """One turn of the loop."""
        scheduler = self.scheduler
        scheduler.recv_requests()
        scheduler.collect_results()
        slot = scheduler.ring.free_slot
        batch = None if slot is None else scheduler.planner.next_batch(slot)
        if batch is not None:
            scheduler.launch_batch(batch)
        self._collect()

    def _collect(self) -> None:
        for message in self.inbox.sent:
            if isinstance(message, BatchTokenOut):
                for out in message.outs:
                    self.tokens[out.rid].extend(out.token_ids)
                    self.logprobs[out.rid].extend(out.logprobs)
                    self.input_logprobs[out.rid].extend(out.input_logprobs)
                    self.cached[out.rid] = out.cached_tokens
                    if out.finish_reason:
                        assert out.rid not in self.finished, f"{out.rid} finished twice"
                        self.finished[out.rid] = out.finish_reason
        self.inbox.sent.clear()

    def run(self) -> None:
        """Turn until all is answered, then check that the pools are empty."""
        for _ in range(20000):
            self.step()
            if not (self.scheduler.reqs or self.inbox.messages or len(self.scheduler.ring)):
                break
        else:
            raise AssertionError("not finished")
        self.step()
        self.scheduler.check_memory()
        for name, pool in self.scheduler.pool_report().items():
            assert pool["held"] == pool["protected"] == 0, (name, pool)

    def check_empty(self) -> None:
        """Every slot of every pool is free once the cache has let go of what it keeps."""
        self.memory.tree_cache.reset()
        self.scheduler.check_memory()
        for name, pool in self.scheduler.pool_report().items():
            assert pool["available"] == pool["total"], (name, pool)

    def generate(self, prompts: list[list[int]], max_new: int = 8) -> list[list[int]]:
        """Greedy tokens of prompts sent together."""
        start = len(self.tokens)
        for i, ids in enumerate(prompts):
            self.add(f"r{start + i}", ids, max_new)
        self.run()
        return [self.tokens[f"r{start + i}"] for i in range(len(prompts))]

    def _use_latency_model(self, args: ServerArgs) -> None:
        assert args.chunked_prefill_size is not None
        predictor = ChunkSizePredictor(
            (STEEP,) * args.pp_size,
            max(self.memory.grid, args.chunked_prefill_size // self.memory.grid * self.memory.grid),
            self.memory.grid,
            args.max_prefill_tokens,
            smooth=1.0,
        )
        self.scheduler.chunk_predictor = predictor
        self.scheduler.planner.budget = DynamicChunkBudget(predictor)


def _poison(runner: ModelRunner) -> None:
    for pool in (runner._kv_pool, runner._mamba_pool):
        for buffers in vars(pool).values() if pool is not None else ():
            for buffer in buffers.values() if isinstance(buffers, dict) else ():
                buffer.fill_(POISON)
