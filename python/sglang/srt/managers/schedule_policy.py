"""Who runs next, and how much of it: pure functions of numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

# Chunk length of the linear-attention kernels (gated delta rule, SSD): states inside a step can be
# saved at absolute multiples of it.
KERNEL_CHUNK = 64


def align_down(value: int, step: int) -> int:
    """The largest multiple of `step` that is at most `value`."""
    return value // step * step


def state_grid(page_size: int, chunk_size: int | None, has_states: bool) -> int:
    """Tokens between two positions at which prompts may be cut and states may be cached.

    One grid for chunk ends, page ends and checkpoints, or they would never meet: the kernel chunk
    rounded up to pages. A chunk size below that makes the grid finer (at least one page).
    `chunk_size` None means unchunked.
    """
    if not has_states:
        return page_size
    grid = math.lcm(page_size, KERNEL_CHUNK)
    if chunk_size is not None and chunk_size < grid:
        grid = max(page_size, align_down(chunk_size, page_size))
    return grid


def chunk_end(start: int, num_tokens: int, budget: int, grid: int, join_tail: int = 0) -> int:
    """End of the next chunk of a prompt, `start` when the budget does not reach a grid line.

    A chunk that is not the last ends on the grid. A rest of at most `join_tail` tokens is taken
    along, since a chunk of its own would cost a whole round through the pipeline.
    """
    if budget <= 0:
        return start
    if start + budget + join_tail >= num_tokens:
        return num_tokens
    return max(start, align_down(start + budget, grid))


def track_positions(
    start: int, end: int, num_tokens: int, grid: int, interval: int, branch: int
) -> list[int]:
    """Positions in (start, end] whose state is worth caching, ascending.

    The end of a chunk that is not the last, the last grid line before the prompt's final token (an
    identical prompt starts there), the branch point, and every multiple of `interval` (0: none).
    Where the grid is finer than the kernels' chunk, a position inside the step cannot be saved; a
    step that goes on from the end of a reply has such positions.
    """
    wanted = set()
    if end < num_tokens:
        wanted.add(end)
    wanted.add(align_down(num_tokens - 1, grid))
    wanted.add(align_down(branch, grid))
    if interval > 0:
        step = math.lcm(interval, grid)
        wanted.update(range(align_down(start, step) + step, end + 1, step))
    saveable = (p for p in wanted if p == end or p % KERNEL_CHUNK == 0)
    return sorted(position for position in saveable if start < position <= end)


def decode_quota(num_decoding: int, pp_size: int, max_micro_batch: int | None) -> int:
    """Most decode rows of one micro-batch: an equal share for each stage keeps all of them busy."""
    quota = math.ceil(num_decoding / pp_size)
    return quota if max_micro_batch is None else min(quota, max_micro_batch)


@dataclass(frozen=True)
class Room:
    """KV tokens as admission sees them."""

    available: int  # free, or evictable once the candidate's own prefix is locked
    promised: int  # what requests in the middle of their prompt still need
    reserve: int  # growth kept free for running requests


# Tokens of growth kept free for each running request. Retracted requests ask for more before they
# come back, or they would be pushed out again at once.
DECODE_RESERVE = 32
RETRACTED_RESERVE = 256


def growth_reserve(remaining_new: Sequence[int], retracted: bool) -> int:
    """KV tokens to keep free, given what each running request may still generate."""
    cap = RETRACTED_RESERVE if retracted else DECODE_RESERVE
    return sum(min(cap, remaining) for remaining in remaining_new)


def fits(need: int, room: Room, alone: bool) -> bool:
    """Whether a prompt that needs `need` more KV tokens may start now.

    A request that is alone starts whenever it can: waiting would not make more room.
    """
    if alone:
        return need <= room.available
    return need + room.promised + room.reserve <= room.available


def waiting_order(policy: str, arrivals: Sequence[int], prefix_lens: Sequence[int]) -> list[int]:
    """Order in which waiting requests are tried: indices into the arguments.

    fcfs: by arrival. lpm (longest prefix match): the longest cached prefix first, which keeps hot
    prefixes from being evicted; ties by arrival.
    """
    indices = range(len(arrivals))
    if policy == "lpm":
        return sorted(indices, key=lambda i: (-prefix_lens[i], arrivals[i]))
    return sorted(indices, key=lambda i: arrivals[i])


def youngest(arrivals: Sequence[int]) -> int:
    """Index of the request to retract: the one that came last loses least."""
    return max(range(len(arrivals)), key=lambda i: arrivals[i])


def refusal(num_prompt: int, max_new_tokens: int, max_req_len: int, context_len: int) -> str | None:
    """Why a request can never run, or None. Names need, bound and the flag to change."""
    need = num_prompt + max_new_tokens
    if num_prompt < 1:
        return "input_ids must hold at least one token"
    if need <= max_req_len:
        return None
    flag = "--context-length" if max_req_len >= context_len else "--max-total-tokens"
    return (
        f"the request needs {need} tokens ({num_prompt} of prompt and up to {max_new_tokens} new), "
        f"and at most {max_req_len} fit; shorten it or raise {flag}"
    )
