"""Scheduling decisions as functions of numbers."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang.srt.managers import schedule_policy as policy
from sglang.srt.managers.chunk_sizer import StaticChunkBudget

PAGES = st.sampled_from([1, 4, 16, 64])
CHUNKS = st.one_of(st.none(), st.integers(1, 4096))


@given(PAGES, CHUNKS, st.booleans())
def test_state_grid_any_flags_meets_pages(page: int, chunk: int | None, has_states: bool) -> None:
    """vLLM 54076: chunk ends, pages and checkpoints lie on one grid."""
    grid = policy.state_grid(page, chunk, has_states)
    assert grid % page == 0 and grid >= 1
    if has_states and (chunk is None or chunk >= math.lcm(page, policy.KERNEL_CHUNK)):
        assert grid % policy.KERNEL_CHUNK == 0
    if chunk is not None and chunk >= page and has_states:
        assert grid <= max(chunk, page)


@given(PAGES, CHUNKS, st.booleans(), st.integers(1, 5000), st.integers(0, 4999))
def test_chunks_of_prompt_any_size_cover_it_and_end_on_grid(
    page: int, chunk: int | None, has_states: bool, num_tokens: int, prefix: int
) -> None:
    """SGLang 6046, 23621: any chunk size works, and every cut is aligned."""
    grid = policy.state_grid(page, chunk, has_states)
    budget = StaticChunkBudget(chunk, 16384, grid)
    start = min(prefix, num_tokens - 1) // page * page
    while start < num_tokens:
        budget.start_batch()
        end = policy.chunk_end(start, num_tokens, budget.next_len(start), grid)
        assert end > start, "a prompt that gets no further waits for ever"
        assert end == num_tokens or end % grid == 0
        start = end


def test_chunk_end_small_tail_joins_chunk_before() -> None:
    """Chunking row "same": a tail of 192 after 4,096 does not cost a round of its own."""
    assert policy.chunk_end(0, 4096 + 192, 4096, 64, join_tail=2047) == 4288
    assert policy.chunk_end(0, 4096 + 2048, 4096, 64, join_tail=2047) == 4096


def test_chunk_end_no_budget_adds_nothing() -> None:
    assert policy.chunk_end(64, 500, 0, 64) == 64
    assert policy.chunk_end(64, 500, 63, 64) == 64


@given(
    st.integers(0, 3000), st.integers(1, 1000), st.integers(0, 500),
    st.sampled_from([1, 16, 64]), st.sampled_from([0, 64, 100, 256]), st.integers(0, 4000),
)  # fmt: skip
def test_track_positions_of_chunk_lie_in_it_on_grid(
    start: int, length: int, rest: int, grid: int, interval: int, branch: int
) -> None:
    end = start + length
    total = end + rest
    found = policy.track_positions(start, end, total, grid, interval, branch)
    assert found == sorted(set(found))
    assert all(start < position <= end for position in found)
    assert all(position % grid == 0 or position == end for position in found)
    if rest:
        assert found[-1] == end, "the next chunk starts from a state that is cached"
    inside = [position for position in found if position != end]
    assert all(position % policy.KERNEL_CHUNK == 0 for position in inside), "cannot be saved"
    branch_point = branch // grid * grid
    if branch_point == end or branch_point % policy.KERNEL_CHUNK == 0:
        assert branch_point in found or not start < branch_point <= end


def test_track_positions_two_prompts_sharing_1500_tokens_meet() -> None:
    """vLLM 45238: the branch point is cached, not just the end of the prompt."""
    assert 1472 in policy.track_positions(0, 2000, 2000, 64, 0, branch=1500)
    assert policy.track_positions(0, 2000, 2000, 64, 512, branch=0) == [512, 1024, 1536, 1984]


def test_decode_quota_any_stages_shares_rows() -> None:
    assert [policy.decode_quota(n, 2, None) for n in (0, 1, 2, 5)] == [0, 1, 1, 3]
    assert policy.decode_quota(9, 2, 3) == 3


def test_fits_alone_ignores_reserve_but_never_size() -> None:
    room = policy.Room(available=100, promised=0, reserve=64)
    assert policy.fits(100, room, alone=True) and not policy.fits(101, room, alone=True)
    assert policy.fits(36, room, alone=False) and not policy.fits(37, room, alone=False)


def test_growth_reserve_retracted_request_asks_for_more() -> None:
    assert policy.growth_reserve([1000, 5], retracted=False) == policy.DECODE_RESERVE + 5
    assert policy.growth_reserve([1000, 5], retracted=True) == policy.RETRACTED_RESERVE + 5


def test_waiting_order_lpm_longest_prefix_first_ties_by_arrival() -> None:
    assert policy.waiting_order("lpm", [1, 2, 3, 4], [0, 64, 0, 128]) == [3, 1, 0, 2]
    assert policy.waiting_order("fcfs", [3, 1, 2], [9, 0, 5]) == [1, 2, 0]


def test_youngest_is_last_arrival() -> None:
    assert policy.youngest([4, 9, 2]) == 1


@pytest.mark.parametrize(
    ("prompt", "new", "limit", "context", "named"),
    [
        (900, 200, 1024, 4096, ["1100", "900", "200", "1024", "--max-total-tokens"]),
        (4000, 200, 4096, 4096, ["4200", "4096", "--context-length"]),
        (0, 5, 100, 100, ["input_ids"]),
    ],
)
def test_refusal_request_that_can_never_fit_names_need_have_and_flag(
    prompt: int, new: int, limit: int, context: int, named: list[str]
) -> None:
    """DESIGN rule 9: what it needs, what there is, which flag to change."""
    message = policy.refusal(prompt, new, limit, context)
    assert message is not None and all(part in message for part in named)


def test_refusal_exact_fit_is_accepted() -> None:
    assert policy.refusal(1000, 24, 1024, 4096) is None
