"""From flags to a running stage: layer slice, weights, pool sizes, pools, scheduler or worker."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import Any

import torch

from sglang.srt import environ
from sglang.srt.distributed.layer_split import LayerRange, split_layers
from sglang.srt.distributed.parallel_state import PipelineGroup
from sglang.srt.kernels.registry import kernels_in_use
from sglang.srt.managers.grammar_manager import GrammarBackend
from sglang.srt.managers.pipeline import PipelineClient
from sglang.srt.managers.pp_trace import PipelineTrace
from sglang.srt.managers.req_memory import ReqMemory
from sglang.srt.managers.schedule_policy import state_grid
from sglang.srt.managers.scheduler import Scheduler, SchedulerConfig
from sglang.srt.managers.transport import Receiver, Sender
from sglang.srt.mem_cache.allocator import OwnerTable, TokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import BasePrefixCache
from sglang.srt.mem_cache.chunk_cache import ChunkCache
from sglang.srt.mem_cache.layer_specs import AttentionSpec, MambaSpec
from sglang.srt.mem_cache.mamba_radix_cache import MambaRadixCache
from sglang.srt.mem_cache.memory_pool import (
    HybridReqToTokenPool,
    MambaPool,
    MHATokenToKVPool,
    ReqToTokenPool,
)
from sglang.srt.mem_cache.radix_cache import RadixCache
from sglang.srt.mem_cache.sizing import (
    PoolSizes,
    SizingRequest,
    check_request,
    max_running_for,
    size_pools,
    stage_cost,
)
from sglang.srt.model_executor.layer_cost import estimate_layer_costs
from sglang.srt.model_executor.model_runner import ModelRunner
from sglang.srt.models.config import ModelConfig, resolve_model_path
from sglang.srt.platform import Platform
from sglang.srt.server_args import ServerArgs

logger = logging.getLogger(__name__)

DEFAULT_MEM_FRACTION = {"cpu": 0.5, "cuda": 0.85}


@dataclass
class Stage:
    """All that one stage process holds."""

    args: ServerArgs
    group: PipelineGroup
    model: ModelConfig
    layers: LayerRange
    partition: list[LayerRange]
    platform: Platform
    runner: ModelRunner
    sizes: PoolSizes
    memory: ReqMemory

    def report(self) -> dict[str, Any]:
        """This stage's row of `/server_info`."""
        start, end = self.layers
        kinds = [
            "attention" if any(isinstance(s, AttentionSpec) for s in specs) else "linear"
            for specs in self.model.layer_specs[start:end]
        ]
        return {
            "pp_rank": self.group.pp_rank,
            "pid": os.getpid(),
            "layers": [start, end],
            "num_attention_layers": kinds.count("attention"),
            "num_linear_layers": kinds.count("linear"),
            "device": self.platform.device,
            "num_threads": torch.get_num_threads(),
            "kernels": kernels_in_use(self.platform.device),
            "weight_bytes": self.runner.weight_bytes,
            "max_total_num_tokens": self.sizes.num_tokens,
            "max_mamba_cache_size": self.sizes.num_states,
            "max_running_requests": self.sizes.max_running,
            "max_req_len": max_req_len(self.model, self.sizes),
            "page_size": self.args.page_size,
            "state_grid": self.memory.grid,
            "chunked_prefill_size": chunk_size(self.args),
        }


def has_states(model: ModelConfig) -> bool:
    """Whether any layer of the model keeps a recurrent or convolution state."""
    return any(isinstance(spec, MambaSpec) for specs in model.layer_specs for spec in specs)


def chunk_size(args: ServerArgs) -> int | None:
    """`--chunked-prefill-size`, None when chunking is off (-1)."""
    size = args.chunked_prefill_size
    return None if size is None or size <= 0 else size


def max_req_len(model: ModelConfig, sizes: PoolSizes) -> int:
    """Prompt and output of one request: what the context and, alone, the KV pool hold."""
    return min(model.context_len, sizes.num_tokens)


def sizing_request(args: ServerArgs, model: ModelConfig) -> SizingRequest:
    """The sizes that the flags ask for."""
    hybrid = has_states(model)
    return SizingRequest(
        max_total_tokens=args.max_total_tokens,
        max_mamba_cache_size=args.max_mamba_cache_size if hybrid else None,
        max_running_requests=args.max_running_requests,
        mamba_full_memory_ratio=args.mamba_full_memory_ratio,
        page_size=args.page_size,
        context_len=model.context_len,
        slots_per_request=(2 if uses_extra_buffer(args) else 1) if hybrid else 0,
    )


def uses_extra_buffer(args: ServerArgs) -> bool:
    """The resolved `--mamba-radix-cache-strategy`.

    auto: without a prefix cache nothing is tracked; with pages of one token the end of every
    reply can be cached as it is; with larger pages a tracking slot keeps the last page-aligned
    state.
    """
    if args.mamba_radix_cache_strategy == "auto":
        return args.page_size > 1 and not args.disable_radix_cache
    return args.mamba_radix_cache_strategy == "extra_buffer"


def layer_ranges(args: ServerArgs, model: ModelConfig) -> list[LayerRange]:
    """The layers of every stage; raises ValueError when there are more stages than layers."""
    if args.pp_size == 1:
        return [(0, model.num_layers)]
    costs = estimate_layer_costs(model)
    return split_layers(costs.layers, args.pp_size, costs.head, environ.pp_layer_partition())


def build_stage(args: ServerArgs, model: ModelConfig, group: PipelineGroup) -> Stage:
    """Load this stage's slice and build its pools, in step with the other stages.

    Raises ValueError (SizingError) with a message for the user when the flags cannot be met.
    """
    warning = check_request(sizing_request(args, model), has_states(model))
    if warning is not None and group.is_first:
        logger.warning("%s", warning)
    partition = layer_ranges(args, model)
    platform = Platform.create(args.device, group.pp_rank, _device_index(args, group))
    runner = ModelRunner(model, partition[group.pp_rank], platform)
    # Each machine draws a seed of its own where none is given; made-up weights need one for all.
    (seed,) = group.agree_min([args.random_seed or 0])
    runner.load(args.load_format, seed)
    sizes = agree_on_sizes(args, model, group, partition[group.pp_rank], platform)
    memory = build_memory(args, model, sizes, runner, partition[group.pp_rank])
    group.barrier()
    return Stage(
        args, group, model, partition[group.pp_rank], partition, platform, runner, sizes, memory
    )


def _device_index(args: ServerArgs, group: PipelineGroup) -> int:
    """Which GPU of its machine a stage uses: the stages of a machine take them in order."""
    place = environ.torchrun_place()
    first = place.local_rank * len(args.local_pp_ranks) if place is not None else 0
    return first + args.local_pp_ranks.index(group.pp_rank)


def agree_on_sizes(
    args: ServerArgs,
    model: ModelConfig,
    group: PipelineGroup,
    layers: LayerRange,
    platform: Platform,
) -> PoolSizes:
    """Pool sizes that every stage can hold: each computes its own, the smallest counts."""
    request = sizing_request(args, model)
    cost = stage_cost(
        model.layer_specs[layers[0] : layers[1]],
        platform.compute_dtype(model.dtype).itemsize,
        platform.compute_dtype(model.dtype).itemsize,
        mamba_ssm_dtype(args).itemsize,
    )
    fraction = args.mem_fraction_static or DEFAULT_MEM_FRACTION[platform.kind]
    sharing = group.pp_size if platform.kind == "cpu" else 1
    budget = int(platform.free_memory_bytes() * fraction / sharing)
    own = size_pools(request, cost, budget)
    tokens, states, running = group.agree_min([own.num_tokens, own.num_states, own.max_running])
    if not has_states(model):
        states = 0
    agreed = PoolSizes(tokens, states, running)
    running = max_running_for(agreed, request.slots_per_request, has_states(model))
    return PoolSizes(tokens, states, running)


def mamba_ssm_dtype(args: ServerArgs) -> torch.dtype:
    """`--mamba-ssm-dtype` as a torch dtype."""
    dtype = getattr(torch, args.mamba_ssm_dtype)
    assert isinstance(dtype, torch.dtype)
    return dtype


def build_memory(
    args: ServerArgs, model: ModelConfig, sizes: PoolSizes, runner: ModelRunner, layers: LayerRange
) -> ReqMemory:
    """Pools of this stage's layers and, on stage 0, what allocates from them.

    All stages build the same bookkeeping; the followers never use it, since slots come to them in
    plans.
    """
    owners = OwnerTable()
    mamba_pool = _mamba_pool(args, model, sizes, runner, layers, owners)
    width = model.context_len + args.page_size
    req_pool: ReqToTokenPool
    if mamba_pool is None:
        req_pool = ReqToTokenPool(sizes.max_running, width, runner.device, owners)
    else:
        req_pool = HybridReqToTokenPool(
            sizes.max_running, width, runner.device, owners, mamba_pool, uses_extra_buffer(args)
        )
    kv_pool = MHATokenToKVPool(
        sizes.num_tokens,
        args.page_size,
        _specs_of(model, layers, AttentionSpec),
        runner.dtype,
        runner.device,
    )
    runner.set_pools(req_pool, kv_pool, mamba_pool)
    allocator = TokenToKVPoolAllocator(sizes.num_tokens, args.page_size, owners)
    grid = state_grid(args.page_size, chunk_size(args), mamba_pool is not None)
    cache: BasePrefixCache
    if args.disable_radix_cache:
        cache = ChunkCache()
    elif mamba_pool is None:
        cache = RadixCache(allocator, owners)
    else:
        cache = MambaRadixCache(allocator, mamba_pool, owners)
    return ReqMemory(
        owners, req_pool, allocator, cache, mamba_pool, grid, args.mamba_track_interval
    )


def _mamba_pool(
    args: ServerArgs,
    model: ModelConfig,
    sizes: PoolSizes,
    runner: ModelRunner,
    layers: LayerRange,
    owners: OwnerTable,
) -> MambaPool | None:
    if not has_states(model):
        return None
    return MambaPool(
        sizes.num_states,
        _specs_of(model, layers, MambaSpec),
        runner.dtype,
        mamba_ssm_dtype(args),
        runner.device,
        owners,
    )


def _specs_of(model: ModelConfig, layers: LayerRange, kind: type) -> dict[int, Any]:
    return {
        layer: spec
        for layer in range(*layers)
        for spec in model.layer_specs[layer]
        if isinstance(spec, kind)
    }


def build_scheduler(
    stage: Stage, client: PipelineClient, receiver: Receiver, sender: Sender
) -> Scheduler:
    """Stage 0's scheduler over a built stage."""
    args, model, sizes = stage.args, stage.model, stage.sizes
    config = SchedulerConfig(
        pp_size=args.pp_size,
        pp_async_batch_depth=args.pp_async_batch_depth,
        pp_max_micro_batch_size=args.pp_max_micro_batch_size,
        chunked_prefill_size=chunk_size(args),
        max_prefill_tokens=args.max_prefill_tokens,
        max_running_requests=sizes.max_running,
        max_queued_requests=args.max_queued_requests,
        max_req_len=max_req_len(model, sizes),
        context_len=model.context_len,
        vocab_size=model.vocab_size,
        eos_token_ids=frozenset(model.eos_token_ids),
        schedule_policy=args.schedule_policy,
        enable_mixed_chunk=args.enable_mixed_chunk,
        enable_dynamic_chunking=args.enable_dynamic_chunking,
        smooth_factor=environ.dynamic_chunking_smooth_factor(),
        check_memory_every_step=environ.check_memory(),
        watchdog_timeout_s=args.watchdog_timeout,
        random_seed=args.random_seed or 0,
        refit_from_live=stage.platform.kind == "cpu",
        server_info={
            "layer_partition": [list(r) for r in stage.partition],
            "max_total_num_tokens": sizes.num_tokens,
            "max_running_requests": sizes.max_running,
            "max_mamba_cache_size": sizes.num_states,
            "max_req_len": max_req_len(model, sizes),
            "context_len": model.context_len,
            "chunked_prefill_size": chunk_size(args),
            "state_grid": stage.memory.grid,
            "mamba_radix_cache_strategy": "extra_buffer"
            if uses_extra_buffer(args)
            else "no_buffer",
            "memory_check_every_step": environ.check_memory(),
        },
    )
    trace = PipelineTrace(args.pp_trace, args.pp_size) if args.pp_trace else None
    return Scheduler(
        config, stage.memory, client, receiver, sender, trace, grammar_backend(args, model)
    )


def grammar_backend(args: ServerArgs, model: ModelConfig) -> GrammarBackend | None:
    """What compiles grammars, None with `--grammar-backend none`."""
    if args.grammar_backend == "none":
        return None
    folder = resolve_model_path(args.tokenizer_path or args.model_path)
    return GrammarBackend(folder / "tokenizer.json", model.vocab_size, model.eos_token_ids)
