"""A scheduler over a fake runner, driven step by step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from sglang.srt.managers.io_struct import (
    AbortReq,
    BatchTokenOut,
    ControlReply,
    ControlReq,
    FinishReason,
    TokenizedGenerateReqInput,
)
from sglang.srt.managers.req_memory import ReqMemory
from sglang.srt.managers.schedule_policy import state_grid
from sglang.srt.managers.scheduler import Scheduler, SchedulerConfig
from sglang.srt.mem_cache.allocator import OwnerTable, TokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import BasePrefixCache
from sglang.srt.mem_cache.chunk_cache import ChunkCache
from sglang.srt.mem_cache.mamba_radix_cache import MambaRadixCache
from sglang.srt.mem_cache.memory_pool import HybridReqToTokenPool, MambaPool, ReqToTokenPool
from sglang.srt.mem_cache.radix_cache import RadixCache
from sglang.srt.sampling.sampling_params import SamplingParams

from .fake_runner import FakePipeline, FakeStage


@dataclass(frozen=True)
class Shape:
    """Sizes of a harness."""

    num_tokens: int = 512
    num_states: int = 12
    page_size: int = 1
    hybrid: bool = True
    radix: bool = True
    extra_buffer: bool = False
    track_interval: int = 64
    delay: int = 0


@dataclass
class Inbox:
    """Both ends of the scheduler's channels."""

    messages: list[Any] = field(default_factory=list)
    sent: list[Any] = field(default_factory=list)

    def recv_nowait(self) -> Any | None:
        return self.messages.pop(0) if self.messages else None

    def poll(self, timeout_ms: int, extra_fds: Sequence[int] = ()) -> bool:
        return bool(self.messages)

    def send(self, message: Any) -> None:
        self.sent.append(message)

    def close(self) -> None:
        pass


def make_memory(shape: Shape, config: SchedulerConfig) -> ReqMemory:
    """Pools without tensors of layers."""
    owners = OwnerTable()
    allocator = TokenToKVPoolAllocator(shape.num_tokens, shape.page_size, owners)
    width = config.context_len + shape.page_size
    mamba: MambaPool | None = None
    pool: ReqToTokenPool
    if shape.hybrid:
        mamba = MambaPool(shape.num_states, {}, torch.float32, torch.float32, "cpu", owners)
        pool = HybridReqToTokenPool(
            config.max_running_requests, width, "cpu", owners, mamba, shape.extra_buffer
        )
    else:
        pool = ReqToTokenPool(config.max_running_requests, width, "cpu", owners)
    cache: BasePrefixCache
    if not shape.radix:
        cache = ChunkCache()
    elif mamba is None:
        cache = RadixCache(allocator, owners)
    else:
        cache = MambaRadixCache(allocator, mamba, owners)
    grid = state_grid(shape.page_size, config.chunked_prefill_size, shape.hybrid)
    return ReqMemory(owners, pool, allocator, cache, mamba, grid, shape.track_interval)


class Harness:
    """Drives a `Scheduler` one loop turn at a time and collects its answers."""

    def __init__(self, shape: Shape = Shape(), **config: Any) -> None:
        defaults = SchedulerConfig(
            chunked_prefill_size=16,
            max_running_requests=4,
            max_req_len=min(256, shape.num_tokens),
            context_len=256,
            vocab_size=97,
            check_memory_every_step=True,
        )
        self.config = replace(defaults, **config)
        self.memory = make_memory(shape, self.config)
        self.stage = FakeStage(
            shape.num_tokens,
            shape.page_size,
            shape.num_states,
            self.config.max_running_requests,
            self.config.context_len + shape.page_size,
            self.config.vocab_size,
        )
        self.inbox = Inbox()
        self.scheduler = Scheduler(
            self.config,
            self.memory,
            FakePipeline(self.stage, shape.delay),
            self.inbox,
            self.inbox,
        )
        self.outputs: dict[str, list[int]] = defaultdict(list)
        self.finished: dict[str, FinishReason] = {}
        self.cached: dict[str, int] = {}
        self.prompts: dict[str, list[int]] = {}

    def add(self, rid: str, input_ids: list[int], max_new_tokens: int, **params: Any) -> None:
        """Send a request."""
        self.prompts[rid] = input_ids
        sampling = SamplingParams(max_new_tokens=max_new_tokens, temperature=0, **params)
        self.inbox.messages.append(TokenizedGenerateReqInput(rid, input_ids, sampling))

    def abort(self, rid: str) -> None:
        """Abort a request."""
        self.inbox.messages.append(AbortReq(rid))

    def control(self, op: Any) -> ControlReply:
        """Make a control call."""
        self.inbox.messages.append(ControlReq("c", op))
        self.scheduler.recv_requests()
        reply = self.inbox.sent.pop()
        assert isinstance(reply, ControlReply)
        return reply

    def step(self) -> None:
        """One turn of the loop."""
        scheduler = self.scheduler
        scheduler.recv_requests()
        scheduler.collect_results()
        slot = scheduler.ring.free_slot
        batch = None if slot is None else scheduler.planner.next_batch(slot)
        if batch is not None:
            scheduler.launch_batch(batch)
        elif scheduler.ring.oldest is None:
            scheduler.on_idle()
        self._collect()

    def run(self, max_steps: int = 5000) -> None:
        """Turn until everything is answered; fails when that does not happen."""
        for _ in range(max_steps):
            self.step()
            if not (self.scheduler.reqs or self.inbox.messages or len(self.scheduler.ring)):
                self.step()
                return
        raise AssertionError(f"not finished after {max_steps} steps: {list(self.scheduler.reqs)}")

    def _collect(self) -> None:
        for message in self.inbox.sent:
            if isinstance(message, BatchTokenOut):
                for out in message.outs:
                    self.outputs[out.rid].extend(out.token_ids)
                    self.cached[out.rid] = out.cached_tokens
                    if out.finish_reason is not None:
                        assert out.rid not in self.finished, "finished twice"
                        self.finished[out.rid] = out.finish_reason
        self.inbox.sent.clear()
