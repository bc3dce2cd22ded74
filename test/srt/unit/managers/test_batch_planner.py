"""What goes into a micro-batch, and what must give way."""

from __future__ import annotations

import pytest

from sglang.srt.managers.schedule_batch import ReqStatus
from sglang.srt.managers.step_plan import encode
from support.fake_runner import expected_output
from support.scheduler_harness import Harness, Shape
from support.seeded_faults import skip_state_lock

VOCAB = 97
PROMPT = [(i * 13 + 5) % VOCAB for i in range(200)]


def want(prompt: list[int], num_new: int) -> list[int]:
    return expected_output(prompt, num_new, VOCAB, set())


def assert_all_right(harness: Harness, new: dict[str, int]) -> None:
    for rid, num_new in new.items():
        assert harness.outputs[rid] == want(harness.prompts[rid], num_new), rid
    for pool in harness.scheduler.pool_report().values():
        assert pool["held"] == pool["protected"] == 0


def test_running_limit_while_chunked_prompt_in_flight_is_reached() -> None:
    """SGLang 38118: the chunked prompt counts once, and does not take anybody's place."""
    harness = Harness(Shape(), max_running_requests=3, chunked_prefill_size=16)
    for i in range(2):
        harness.add(f"d{i}", [i + 1, 2, 3], 60)
    for _ in range(6):
        harness.step()
    harness.add("long", PROMPT, 5)
    seen = []
    while "long" not in harness.outputs:
        harness.step()
        running = harness.scheduler.planner.running
        if any(r.status is ReqStatus.PREFILLING for r in running):
            seen.append(len(running))
    assert len(seen) >= 10 and set(seen) == {3}
    harness.run()
    assert_all_right(harness, {"d0": 60, "d1": 60, "long": 5})


def test_one_running_request_prompt_longer_than_chunk_does_not_block_itself() -> None:
    """SGLang 23006: pp 2, one running request, chunks of 64, a longer prompt."""
    harness = Harness(Shape(delay=2), pp_size=2, max_running_requests=1, chunked_prefill_size=64)
    harness.add("a", PROMPT, 5)
    harness.add("b", PROMPT[:130], 5)
    harness.run()
    assert_all_right(harness, {"a": 5, "b": 5})


def test_few_mamba_slots_requests_wait_and_all_are_served() -> None:
    """SGLang 34676, 37619: 3 running, 16 slots, most of them cached: a shortage is waiting."""
    harness = Harness(Shape(num_tokens=512, num_states=6, extra_buffer=True),
                      max_running_requests=3, chunked_prefill_size=16)  # fmt: skip
    for i in range(12):
        harness.add(f"r{i}", [i, *PROMPT[: 40 + 9 * i]], 10)
    harness.run()
    assert_all_right(harness, {f"r{i}": 10 for i in range(12)})


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("hybrid", [False, True])
def test_eviction_long_prompt_after_four_cached_ends(page_size: int, hybrid: bool) -> None:
    """SGLang 30314: 1,024 tokens, four prompts of 256, then 700: the evictor must not spin."""
    shape = Shape(num_tokens=1024, num_states=20, page_size=page_size, hybrid=hybrid)
    harness = Harness(shape, max_req_len=1024, context_len=1024, chunked_prefill_size=128)
    for i in range(4):
        harness.add(f"r{i}", [i] + [(i * 31 + j) % VOCAB for j in range(255)], 1)
        harness.run()
    assert harness.scheduler.pool_report()["kv"]["evictable"] >= 4 * 240
    harness.add("long", [9] + [(j * 7) % VOCAB for j in range(699)], 8)
    harness.run(max_steps=100)
    assert_all_right(harness, {**{f"r{i}": 1 for i in range(4)}, "long": 8})


@pytest.mark.parametrize("extra_buffer", [False, True])
@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("radix", [True, False])
def test_retraction_forced_by_small_pool_same_tokens(
    page_size: int, extra_buffer: bool, radix: bool
) -> None:
    """SGLang 22493, 35957: a retracted request goes on as if it never left."""
    shape = Shape(num_tokens=160, num_states=8, page_size=page_size, radix=radix,
                  extra_buffer=extra_buffer and radix, delay=1)  # fmt: skip
    harness = Harness(shape, pp_size=2, max_req_len=150)
    for i in range(4):
        harness.add(f"r{i}", [i, *PROMPT[i : i + 20]], 100)
    harness.run()
    assert harness.scheduler.planner.num_retracted > 0
    assert_all_right(harness, {f"r{i}": 100 for i in range(4)})


def test_retraction_youngest_gives_way_and_oldest_never() -> None:
    harness = Harness(Shape(num_tokens=160, num_states=8), max_req_len=150)
    for i in range(4):
        harness.add(f"r{i}", [i, *PROMPT[i : i + 20]], 100)
    order = []
    while len(harness.finished) < 4:
        harness.step()
        order += [rid for rid in harness.finished if rid not in order]
    assert order[0] == "r0"
    assert harness.scheduler.planner.num_retracted > 0


@pytest.mark.parametrize("page_size", [16, 64])
@pytest.mark.parametrize("chunk", [1, 3, 100, 300])
def test_chunk_ends_large_pages_are_aligned(page_size: int, chunk: int) -> None:
    """SGLang 6046: no chunk leaves less than a page, whatever its size."""
    harness = Harness(Shape(num_tokens=512, page_size=page_size), chunked_prefill_size=chunk)
    harness.add("a", PROMPT, 20)
    harness.run()
    plans = [plan for plan in harness.stage.log if not plan.num_decode_rows]
    ends = [start + count for p in plans for start, count in zip(p.prefix_lens, p.extend_lens,
                                                                 strict=True)]  # fmt: skip
    assert ends[-1] == len(PROMPT) and all(end % page_size == 0 for end in ends[:-1])
    assert_all_right(harness, {"a": 20})


def test_chunks_not_last_sample_nothing() -> None:
    """vLLM 38726: a chunk that is not the last one asks for no token."""
    harness = Harness(Shape(), chunked_prefill_size=16)
    harness.add("a", PROMPT[:100], 3)
    harness.run()
    sampled = [len(plan.sample_rows) for plan in harness.stage.log]
    assert sampled == [0] * 6 + [1] * 3


@pytest.mark.parametrize("policy", ["fcfs", "lpm"])
def test_plans_same_requests_same_bytes(policy: str) -> None:
    """DESIGN rule 5: order is data."""

    def plans() -> list[bytes]:
        harness = Harness(Shape(num_tokens=256, num_states=7, delay=1), pp_size=2,
                          schedule_policy=policy, enable_mixed_chunk=True)  # fmt: skip
        for i in range(8):
            harness.add(f"r{i}", [*PROMPT[: 30 * (i % 3)], i, 3, 4], 10 + i)
            harness.step()
        harness.run()
        return [encode(plan) for plan in harness.stage.log]

    assert plans() == plans()


def test_policy_lpm_cached_prefix_goes_first() -> None:
    harness = Harness(Shape(), schedule_policy="lpm", max_running_requests=1,
                      chunked_prefill_size=64)  # fmt: skip
    harness.add("seed", PROMPT[:120], 2)
    harness.run()
    harness.add("stranger", [1] * 90, 2)
    harness.add("friend", [*PROMPT[:110], 3], 2)
    order = []
    while len(harness.finished) < 3:
        harness.step()
        order += [rid for rid in harness.finished if rid not in order]
    assert order == ["seed", "friend", "stranger"]
    assert_all_right(harness, {"stranger": 2, "friend": 2})


def _hits_and_stranger_at_once() -> Harness:
    """One plan that admits two hits and then, out of slots, somebody who needs a zeroed one."""
    harness = Harness(Shape(num_states=3), max_running_requests=3, chunked_prefill_size=64)
    harness.add("seed", PROMPT[:65], 1)
    harness.run()
    prompts = [[*PROMPT[:64], 1], [*PROMPT[:64], 2], [9] * 20]
    for i, prompt in enumerate(prompts):
        harness.add(f"r{i}", prompt, 4)
    harness.run()
    assert_all_right(harness, {f"r{i}": 4 for i in range(3)})
    return harness


def test_state_copied_by_plan_is_not_given_away_in_it() -> None:
    """The state that an admitted row starts from stays until the plan is out."""
    assert _hits_and_stranger_at_once().cached["r0"] == 64


def test_state_copied_by_plan_without_lock_is_noticed() -> None:
    with skip_state_lock(), pytest.raises((AssertionError, RuntimeError)):
        _hits_and_stranger_at_once()


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("micro_batch", [None, 1, 2])
def test_scheduling_knobs_never_change_answers(mixed: bool, micro_batch: int | None) -> None:
    """SGLang 39342: mixed batches and micro-batch limits change nothing but speed."""
    harness = Harness(Shape(delay=1), pp_size=3, enable_mixed_chunk=mixed,
                      pp_max_micro_batch_size=micro_batch)  # fmt: skip
    new = {}
    for i in range(8):
        harness.add(f"r{i}", [*PROMPT[: 20 * i], i], 5 + 3 * i)
        new[f"r{i}"] = 5 + 3 * i
        harness.step()
    harness.run()
    assert_all_right(harness, new)


def test_two_stages_with_work_waiting_both_have_a_micro_batch() -> None:
    """vLLM 27462: decode rows are shared out, so that every stage is busy."""
    harness = Harness(Shape(delay=1), pp_size=2)
    for i in range(4):
        harness.add(f"r{i}", [i, 2, 3], 40)
    for _ in range(20):
        harness.step()
    assert len(harness.scheduler.ring) == 2
    batches = [harness.scheduler.ring.oldest]
    assert batches[0] is not None and len(batches[0].rows) == 2
    harness.run()


def test_decode_row_with_token_in_flight_is_in_no_second_plan() -> None:
    harness = Harness(Shape(delay=5), pp_size=3)
    harness.add("a", [1, 2, 3], 10)
    for _ in range(4):
        harness.step()
    assert len(harness.scheduler.ring) == 1
    harness.run()
    starts = [plan.prefix_lens[0] for plan in harness.stage.log]
    assert starts == sorted(set(starts))


def test_decode_rows_do_not_starve_a_prompt_in_mixed_batches() -> None:
    """Decode rows go first; with a budget of one grid step they would otherwise take it all."""
    harness = Harness(
        Shape(num_tokens=1024, num_states=40), enable_mixed_chunk=True, chunked_prefill_size=16
    )
    harness.add("talker", [1] * 4, 200)
    for _ in range(10):
        harness.step()
    harness.add("prompt", [2] * 100, 2)
    for _ in range(60):
        harness.step()
    assert "prompt" in harness.finished
    assert "talker" not in harness.finished
