"""The simulation: it runs the server's schedule, and its time adds up."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang.plan_pipeline.profile import Link
from sglang.plan_pipeline.simulator import SimConfig, SimRequest, SimResult, chunk_budget, simulate
from sglang.srt.managers.chunk_sizer import LatencyModel
from support.scheduler_harness import Harness, Shape

LINEAR = LatencyModel(a=0.0, b=2e-5, c=2e-3, g=0.0)
ATTENTION = LatencyModel(a=4e-9, b=1e-5, c=1e-3, g=1e-7)


def chunks_of(result: SimResult) -> list[list[tuple[str, int, int]]]:
    return [list(chunk.rows) for chunk in result.chunks]


def check_conservation(result: SimResult, requests: list[SimRequest]) -> None:
    """Every token of every prompt is computed exactly once, in order, on every stage in turn."""
    for i, request in enumerate(requests):
        parts = [(a, b) for c in result.chunks for rid, a, b in c.rows if rid == str(i)]
        assert parts[0][0] == 0
        assert all(end == start for (_, end), (start, _) in pairwise(parts))
        assert parts[-1][1] == request.num_prompt + request.max_new_tokens - 1
    for chunk in result.chunks:
        for before, after in pairwise(chunk.spans):
            assert before.end <= after.start + 1e-9
    for stage in range(len(result.chunks[0].spans)):
        spans = [chunk.spans[stage] for chunk in result.chunks]
        assert all(a.end <= b.start + 1e-9 for a, b in pairwise(spans))
    assert all(0 <= fraction < 1 for fraction in result.bubble_fractions())


@pytest.mark.parametrize("smooth", [None, 0.75, 1.0])
def test_one_stage_takes_the_sum_of_its_chunks(smooth: float | None) -> None:
    config = SimConfig((ATTENTION,), 512, smooth)
    result = simulate(config, [SimRequest(10_000)])
    total = sum(ATTENTION.seconds(a, b - a) for c in result.chunks for _, a, b in c.rows)
    assert result.time_to_first_token_s[0] == pytest.approx(total)
    assert result.bubble_fraction == pytest.approx(0, abs=1e-9)
    assert result.prompt_tokens_per_s == pytest.approx(10_000 / total)


def test_two_equal_stages_with_static_linear_chunks_lose_one_chunk() -> None:
    """k chunks of time t over n stages take (k + n - 1) t."""
    config = SimConfig((LINEAR,) * 3, 500)
    result = simulate(config, [SimRequest(5000)])
    assert result.time_to_first_token_s[0] == pytest.approx(12 * LINEAR.seconds(0, 500))
    assert result.bubble_fraction == pytest.approx(2 / 12)


def test_dynamic_chunks_leave_smaller_bubbles_where_attention_is_heavy() -> None:
    heavy = replace(ATTENTION, a=2e-8, c=1e-4)
    for pp_size in (2, 4, 8):
        config = SimConfig((heavy,) * pp_size, 2048)
        static = simulate(config, [SimRequest(32768)])
        dynamic = simulate(replace(config, smooth=0.75), [SimRequest(32768)])
        assert dynamic.bubble_fraction <= static.bubble_fraction
        assert dynamic.time_to_first_token_s[0] < static.time_to_first_token_s[0]


def test_a_link_costs_its_latency_each_hop_and_its_bandwidth_each_chunk() -> None:
    config = SimConfig((LINEAR,) * 4, 512)
    free = simulate(config, [SimRequest(512)]).time_to_first_token_s[0]
    slow = replace(config, link=Link(0.1, 1e6), activation_bytes_per_token=1000.0)
    paid = simulate(slow, [SimRequest(512)]).time_to_first_token_s[0]
    # Three hops forward and the result's way back; three times 512 kB at 1 MB/s.
    assert paid - free == pytest.approx(4 * 0.1 + 3 * 0.512)


def test_stages_that_share_one_core_are_no_faster_than_one_stage() -> None:
    half = LatencyModel(ATTENTION.a / 2, ATTENTION.b / 2, ATTENTION.c / 2, ATTENTION.g / 2)
    one = simulate(SimConfig((ATTENTION,), 512), [SimRequest(8192)])
    two = simulate(SimConfig((half, half), 512, cores=1), [SimRequest(8192)])
    assert two.time_to_first_token_s[0] == pytest.approx(one.time_to_first_token_s[0])
    free = simulate(SimConfig((half, half), 512, cores=2), [SimRequest(8192)])
    own = simulate(SimConfig((half, half), 512), [SimRequest(8192)])
    assert free.time_to_first_token_s[0] == pytest.approx(own.time_to_first_token_s[0])


def test_host_and_front_end_costs_are_added() -> None:
    config = SimConfig((LINEAR,), 512, step_overhead_s=0.01, request_overhead_s=0.5)
    result = simulate(config, [SimRequest(1024)])
    expected = 2 * (LINEAR.seconds(0, 512) + 0.01) + 0.5
    assert result.time_to_first_token_s[0] == pytest.approx(expected)
    assert result.bubble_fraction > 0  # the layers stood still meanwhile


def test_arrivals_wait_for_their_time_and_are_measured_from_it() -> None:
    config = SimConfig((LINEAR, LINEAR), 512)
    late = simulate(config, [SimRequest(512), SimRequest(512, arrival_s=5.0)])
    assert late.time_to_first_token_s[0] == pytest.approx(late.time_to_first_token_s[1])
    assert late.finished_s[1] > 5.0


def test_too_small_a_pool_is_refused_and_a_small_one_waits() -> None:
    requests = [SimRequest(1000), SimRequest(1000)]
    with pytest.raises(ValueError, match="kv_tokens is 900"):
        simulate(SimConfig((LINEAR,), 512, kv_tokens=900), requests)
    tight = simulate(SimConfig((LINEAR,), 512, kv_tokens=1200), requests)
    check_conservation(tight, requests)
    assert {rid for c in tight.chunks[:2] for rid, _, _ in c.rows} == {"0"}


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 600), min_size=1, max_size=5),
    pp_size=st.integers(1, 5),
    chunk_size=st.integers(1, 200),
    smooth=st.sampled_from([None, 0.3, 1.0]),
    output=st.integers(1, 4),
    has_states=st.booleans(),
    cores=st.sampled_from([None, 1, 2]),
    spacing=st.sampled_from([0.0, 0.003]),
)
def test_tokens_and_time_are_conserved(
    lengths, pp_size, chunk_size, smooth, output, has_states, cores, spacing
) -> None:
    models = tuple(LINEAR if i % 2 else ATTENTION for i in range(pp_size))
    config = SimConfig(
        models, chunk_size, smooth, has_states, link=Link(1e-3, 1e6),
        activation_bytes_per_token=10.0, cores=cores, step_overhead_s=1e-4,
    )  # fmt: skip
    requests = [SimRequest(n, i * spacing, output) for i, n in enumerate(lengths)]
    result = simulate(config, requests)
    check_conservation(result, requests)
    assert result == simulate(config, requests)  # the same every time
    if cores is None:
        work = sum(models[0].added(a, b - a) for c in result.chunks for _, a, b in c.rows)
        busy = sum(c.spans[0].end - c.spans[0].start for c in result.chunks)
        assert busy == pytest.approx(work + models[0].c * len(result.chunks))


@pytest.mark.parametrize("smooth", [None, 0.75, 1.0])
@pytest.mark.parametrize("pp_size", [1, 2, 4])
@pytest.mark.parametrize("hybrid", [True, False])
def test_the_real_scheduler_makes_the_same_chunks(
    smooth: float | None, pp_size: int, hybrid: bool
) -> None:
    """Same requests, same flags: the scheduler in process and the simulation agree on every row."""
    lengths = [230, 17, 64, 129]
    config = SimConfig((replace(ATTENTION, a=1e-6),) * pp_size, 32, smooth, hybrid)
    requests = [SimRequest(n) for n in lengths]
    harness = Harness(
        Shape(hybrid=hybrid, radix=False, num_tokens=1024),
        chunked_prefill_size=32, pp_size=pp_size, max_running_requests=8, max_req_len=256,
    )  # fmt: skip
    if smooth is not None:
        harness.scheduler.planner.budget = chunk_budget(config, harness.memory.grid)
    for i, n in enumerate(lengths):
        harness.add(str(i), [3] * n, 1)
    harness.run()
    real = [
        list(zip(plan.prefix_lens, plan.extend_lens, strict=True)) for plan in harness.stage.log
    ]
    simulated = simulate(replace(config, max_running=8), requests)
    assert real == [[(a, b - a) for _, a, b in rows] for rows in chunks_of(simulated)]


def test_decoding_follows_the_real_scheduler_too() -> None:
    """One stage answers at once in both, so that prompts and decode steps mix alike."""
    shape = Shape(num_tokens=1024, radix=False)
    harness = Harness(shape, chunked_prefill_size=32, max_running_requests=8)
    lengths = [100, 40, 33]
    for i, n in enumerate(lengths):
        harness.add(str(i), [3] * n, 5 + i, ignore_eos=True)
    harness.run()
    real = [
        list(zip(plan.prefix_lens, plan.extend_lens, strict=True)) for plan in harness.stage.log
    ]
    config = SimConfig((LINEAR,), 32, has_states=True, max_running=8)
    simulated = simulate(config, [SimRequest(n, 0.0, 5 + i) for i, n in enumerate(lengths)])
    assert real == [[(a, b - a) for _, a, b in rows] for rows in chunks_of(simulated)]
