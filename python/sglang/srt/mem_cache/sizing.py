"""From memory to slots: pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sglang.srt.mem_cache.layer_specs import AttentionSpec, LayerSpecs, MambaSpec


@dataclass(frozen=True)
class StageCost:
    """Bytes that one slot of each kind costs on one stage."""

    bytes_per_token: int
    bytes_per_state: int


def stage_cost(
    layers: Sequence[LayerSpecs], kv_itemsize: int, conv_itemsize: int, state_itemsize: int
) -> StageCost:
    """Cost on a stage with these layers; a stage pays for its own layers only."""
    specs = [spec for layer in layers for spec in layer]
    return StageCost(
        sum(s.bytes_per_token(kv_itemsize) for s in specs if isinstance(s, AttentionSpec)),
        sum(
            s.bytes_per_slot(conv_itemsize, state_itemsize)
            for s in specs
            if isinstance(s, MambaSpec)
        ),
    )


@dataclass(frozen=True)
class SizingRequest:
    """What was asked for; None means: decide."""

    max_total_tokens: int | None
    max_mamba_cache_size: int | None
    max_running_requests: int | None
    mamba_full_memory_ratio: float  # memory for states : memory for KV
    page_size: int
    context_len: int
    slots_per_request: int  # Mamba slots a running request holds


@dataclass(frozen=True)
class PoolSizes:
    """Slots of each pool. `num_states` is 0 for a model without recurrent layers."""

    num_tokens: int
    num_states: int
    max_running: int


DEFAULT_MAX_RUNNING = 256
# A state of each running request, and this many cached ones beside it, before the memory bound.
CACHED_STATES_PER_REQUEST = 4


# Without --max-total-tokens: a million cached tokens, or four full contexts, if memory allows.
USEFUL_TOKENS = 2**20


class SizingError(ValueError):
    """The pools that were asked for cannot be had; the message names need, have and flag."""


def check_request(request: SizingRequest, has_states: bool) -> str | None:
    """Compare the flags with each other before anything is loaded.

    Returns a warning when `--max-running-requests` must be lowered; raises SizingError when not
    even one request could run.
    """
    states, running = request.max_mamba_cache_size, request.max_running_requests
    if has_states and states is not None:
        if states < request.slots_per_request:
            raise SizingError(
                f"--max-mamba-cache-size {states} holds no request: each needs "
                f"{request.slots_per_request} Mamba slot(s) with this cache strategy"
            )
        if running is not None and running * request.slots_per_request > states:
            return (
                f"--max-running-requests {running} needs {running * request.slots_per_request} "
                f"Mamba slots, --max-mamba-cache-size is {states}: at most "
                f"{states // request.slots_per_request} requests will run at once"
            )
    tokens = request.max_total_tokens
    if tokens is not None and tokens < 2 * request.page_size:
        raise SizingError(
            f"--max-total-tokens {tokens} is less than two pages of --page-size {request.page_size}"
        )
    return None


def size_pools(request: SizingRequest, cost: StageCost, budget_bytes: int) -> PoolSizes:
    """Slots that `budget_bytes` of one stage allow; the stages then agree on the smallest.

    Unset sizes are bounded by use as well as by memory: no more tokens than all running requests
    can have, no more states than `CACHED_STATES_PER_REQUEST` would use.
    Raises SizingError when an explicit size does not fit or memory does not hold one request.
    """
    running = request.max_running_requests or DEFAULT_MAX_RUNNING
    kv_bytes, state_bytes = budget_bytes, 0
    if cost.bytes_per_state:
        ratio = request.mamba_full_memory_ratio
        state_bytes = (
            int(budget_bytes * ratio / (1 + ratio)) if cost.bytes_per_token else budget_bytes
        )
        kv_bytes = budget_bytes - state_bytes
    num_states = _count(
        "--max-mamba-cache-size",
        request.max_mamba_cache_size,
        running * (request.slots_per_request + CACHED_STATES_PER_REQUEST),
        cost.bytes_per_state,
        (state_bytes, budget_bytes),
    )
    num_tokens = _count(
        "--max-total-tokens",
        request.max_total_tokens,
        max(4 * request.context_len, min(running * request.context_len, USEFUL_TOKENS)),
        cost.bytes_per_token,
        (kv_bytes, budget_bytes),
    )
    num_tokens = num_tokens // request.page_size * request.page_size
    if num_tokens < 2 * request.page_size or num_states < request.slots_per_request:
        raise SizingError(
            f"{budget_bytes / 2**20:.0f} MiB of cache memory hold {num_tokens} tokens and "
            f"{num_states} states, not enough for one request; raise --mem-fraction-static"
        )
    return PoolSizes(num_tokens, num_states, running)


# A page table has 32-bit slots; this also bounds what a stage without attention would claim.
MAX_TOKENS = 2**30


def _count(
    flag: str, wanted: int | None, useful: int, item_bytes: int, memory: tuple[int, int]
) -> int:
    share, total = memory
    if wanted is not None:
        if wanted * item_bytes > total:
            raise SizingError(
                f"{flag} {wanted} needs {wanted * item_bytes / 2**20:.0f} MiB, this stage has "
                f"{total / 2**20:.0f} MiB for its caches (--mem-fraction-static)"
            )
        return wanted
    return min(useful, share // item_bytes if item_bytes else MAX_TOKENS, MAX_TOKENS)


def max_running_for(sizes: PoolSizes, slots_per_request: int, has_states: bool) -> int:
    """Running requests that the agreed pools support."""
    if not has_states:
        return sizes.max_running
    return max(1, min(sizes.max_running, sizes.num_states // slots_per_request))
