"""A real scheduler over real stages, all in this process: no sockets, no processes."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import torch

from sglang.srt.distributed.layer_split import split_layers
from sglang.srt.distributed.parallel_state import PipelineGroup
from sglang.srt.managers.io_struct import BatchTokenOut, FinishReason, TokenizedGenerateReqInput
from sglang.srt.managers.scheduler import Scheduler, SchedulerConfig
from sglang.srt.managers.stage_builder import build_memory, grammar_backend, has_states
from sglang.srt.managers.step_plan import StageSpan, StepPlan, StepResult
from sglang.srt.mem_cache.sizing import PoolSizes
from sglang.srt.model_executor.model_runner import ModelRunner
from sglang.srt.models.config import ModelConfig
from sglang.srt.platform import Platform
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.server_args import ServerArgs

from .scheduler_harness import Inbox


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
        **flags: Any,
    ) -> None:
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
        self.runners = [ModelRunner(model, layers, Platform("cpu")) for layers in ranges]
        memories = []
        for runner, layers in zip(self.runners, ranges, strict=True):
            runner.load(args.load_format, 0)
            memories.append(build_memory(args, model, sizes, runner, layers))
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
        self.outs: dict[str, Any] = {}
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

    def step(self) -> None:
        """One turn of the loop."""
        scheduler = self.scheduler
        scheduler.recv_requests()
        scheduler.collect_results()
        slot = scheduler.ring.free_slot
        batch = None if slot is None else scheduler.planner.next_batch(slot)
        if batch is not None:
            scheduler.launch_batch(batch)
        for message in self.inbox.sent:
            if isinstance(message, BatchTokenOut):
                for out in message.outs:
                    self.tokens[out.rid].extend(out.token_ids)
                    self.logprobs[out.rid].extend(out.logprobs)
                    self.input_logprobs[out.rid].extend(out.input_logprobs)
                    self.cached[out.rid] = out.cached_tokens
                    if out.finish_reason:
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

    def generate(self, prompts: list[list[int]], max_new: int = 8) -> list[list[int]]:
        """Greedy tokens of prompts sent together."""
        start = len(self.tokens)
        for i, ids in enumerate(prompts):
            self.add(f"r{start + i}", ids, max_new)
        self.run()
        return [self.tokens[f"r{start + i}"] for i in range(len(prompts))]


