"""The life of requests as clients see it: refused, aborted, cached, profiled, flushed."""

from __future__ import annotations

import math

import pytest

from sglang.srt.managers.io_struct import AbortReq
from sglang.srt.managers.schedule_batch import ReqStatus
from sglang.srt.managers.step_plan import StageSpan, StepPlan, StepResult
from support.fake_runner import FakePipeline, expected_output
from support.scheduler_harness import Harness, Shape
from support.seeded_faults import skip_mamba_free_in_profiling

VOCAB = 97


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return [(i * i * 7 + 11 * i + seed * 31) % VOCAB for i in range(length)]


def assert_nothing_held(harness: Harness) -> None:
    for name, pool in harness.scheduler.pool_report().items():
        assert pool["held"] == pool["protected"] == 0, (name, pool)


# -- aborts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("delay", [0, 3])
@pytest.mark.parametrize("steps", range(0, 14))
def test_abort_at_any_step_gives_all_back(steps: int, delay: int) -> None:
    """SGLang 29405: found in any micro-batch, in prefill or decode; its KV comes back at once."""
    harness = Harness(Shape(delay=delay, extra_buffer=True), pp_size=3)
    harness.add("other", prompt_of(30, 1), 12)
    harness.add("victim", prompt_of(90), 30)
    for _ in range(steps):
        harness.step()
    harness.abort("victim")
    harness.step()
    assert all(req.rid != "victim" for req in harness.scheduler.live_reqs())
    assert harness.finished["victim"].type == "abort"
    harness.run()
    assert harness.outputs["other"] == expected_output(prompt_of(30, 1), 12, VOCAB, set())
    right = expected_output(prompt_of(90), 30, VOCAB, set())
    assert harness.outputs["victim"] == right[: len(harness.outputs["victim"])]
    assert_nothing_held(harness)


def test_abort_between_match_and_first_batch_leaves_no_slot() -> None:
    """SGLang 12693, 20182: a queued request whose prefix matched holds nothing when it goes."""
    harness = Harness(Shape(), max_running_requests=1, schedule_policy="lpm")
    harness.add("seed", prompt_of(80), 1)
    harness.run()
    harness.add("running", prompt_of(20, 5), 40)
    harness.step()
    for i in range(3):
        harness.add(f"q{i}", [*prompt_of(70), i], 5)
    for _ in range(4):
        harness.step()
    waiting = harness.scheduler.planner.waiting
    assert [req.rid for req in waiting] == ["q0", "q1", "q2"]
    for req in waiting:
        assert (req.req_pool_idx, req.mamba_pool_idx, req.last_node) == (None, None, None)
    before = harness.scheduler.pool_report()["mamba"]
    for i in range(3):
        harness.abort(f"q{i}")
    harness.step()
    after = harness.scheduler.pool_report()["mamba"]
    assert after["available"] == before["available"] and after["protected"] == 0
    harness.run()
    assert_nothing_held(harness)


def test_disconnect_while_queued_is_never_admitted() -> None:
    """Same, for a client that goes while its request waits: the scheduler answers nothing more."""
    harness = Harness(Shape(), max_running_requests=1)
    harness.add("running", prompt_of(20), 20)
    harness.add("gone", prompt_of(50, 2), 20)
    for _ in range(3):
        harness.step()
    harness.inbox.messages.append(AbortReq("gone", finish=True))
    harness.run()
    assert "gone" not in harness.outputs and "gone" not in harness.finished
    assert_nothing_held(harness)


def test_disconnect_of_all_running_third_starts_at_once() -> None:
    """SGLang 36333: two clients vanish; a third does not wait for their `max_tokens`."""
    harness = Harness(Shape(), max_running_requests=2)
    for i in range(2):
        harness.add(f"gone{i}", prompt_of(20, i), 150)
    for _ in range(10):
        harness.step()
    harness.add("third", prompt_of(20, 7), 3)
    for i in range(2):
        harness.inbox.messages.append(AbortReq(f"gone{i}", finish=True))
    harness.run(max_steps=20)
    assert harness.finished["third"].type == "length"


def test_queue_limit_pushed_out_request_is_told_and_holds_nothing() -> None:
    """SGLang 20182: `--max-queued-requests`."""
    harness = Harness(Shape(), max_running_requests=1, max_queued_requests=2)
    harness.add("running", prompt_of(20), 40)
    for _ in range(3):
        harness.step()
    for i in range(4):
        harness.add(f"q{i}", prompt_of(20, i), 2)
    harness.step()
    refused = {rid for rid, reason in harness.finished.items() if reason.type == "abort"}
    assert refused == {"q2", "q3"}
    assert harness.finished["q2"].status_code == 503
    assert "--max-queued-requests 2" in (harness.finished["q2"].message or "")
    harness.run()
    assert harness.finished["q0"].type == harness.finished["q1"].type == "length"
    assert_nothing_held(harness)


def test_abort_all_ends_running_and_waiting() -> None:
    harness = Harness(Shape(), max_running_requests=2)
    for i in range(5):
        harness.add(f"r{i}", prompt_of(40, i), 50)
    for _ in range(6):
        harness.step()
    harness.inbox.messages.append(AbortReq(abort_all=True))
    harness.step()
    assert all(harness.finished[f"r{i}"].type == "abort" for i in range(5))
    harness.run()
    assert_nothing_held(harness)


# -- refusals ------------------------------------------------------------------------------------


def test_request_that_can_never_fit_refused_with_need_have_and_flag() -> None:
    harness = Harness(Shape(num_tokens=128))
    harness.add("big", prompt_of(120), 20)
    harness.add("ok", prompt_of(100), 20)
    harness.run()
    reason = harness.finished["big"]
    assert reason.status_code == 400
    assert all(part in reason.message for part in ("140", "128", "--max-total-tokens"))
    assert harness.finished["ok"].type == "length"


@pytest.mark.parametrize("ids", [[1, -1], [97], [1, 2**30]])
def test_token_out_of_vocabulary_refused_next_is_served(ids: list[int]) -> None:
    """SGLang 28088: the scheduler refuses what the front end would have."""
    harness = Harness(Shape())
    harness.add("bad", ids, 5)
    harness.add("good", [1, 2], 5)
    harness.run()
    assert (
        harness.finished["bad"].status_code == 400
        and "input_ids" in harness.finished["bad"].message
    )
    assert harness.outputs["good"] == expected_output([1, 2], 5, VOCAB, set())


def test_flush_while_running_refused_with_reason_then_empties() -> None:
    """SGLang 33783: `/flush_cache` while requests run never kills the scheduler."""
    harness = Harness(Shape())
    harness.add("a", prompt_of(60), 20)
    for _ in range(5):
        harness.step()
    reply = harness.control("flush_cache")
    assert not reply.success and "1 request(s) are running or queued" in reply.message
    harness.run()
    assert harness.scheduler.pool_report()["kv"]["evictable"] > 0
    assert harness.control("flush_cache").success
    for pool in harness.scheduler.pool_report().values():
        assert pool["available"] == pool["total"]


# -- the prefix cache ----------------------------------------------------------------------------


def cached_after(harness: Harness, first: list[int], second: list[int], new: int = 4) -> int:
    """`cached_tokens` of the second prompt; both answers are checked."""
    for rid, prompt in (("first", first), ("second", second)):
        harness.add(rid, prompt, new)
        harness.run()
        assert harness.outputs[rid] == expected_output(prompt, new, VOCAB, set()), rid
    return harness.cached["second"]


def big(**changes) -> Harness:
    shape = {"num_tokens": 8192, "num_states": 64, **changes}
    chunk = shape.pop("chunk", 512)
    return Harness(Shape(**shape), max_req_len=4096, context_len=4096, chunked_prefill_size=chunk)


@pytest.mark.parametrize("extra_buffer", [False, True])
@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize("length", [65, 640, 641, 1000])
def test_second_identical_prompt_reuses_all_but_last_grid_step(
    length: int, page_size: int, extra_buffer: bool
) -> None:
    """vLLM 51250: and `cached_tokens` says so."""
    harness = big(page_size=page_size, extra_buffer=extra_buffer)
    grid = harness.memory.grid
    assert grid == math.lcm(64, page_size)
    reused = cached_after(harness, prompt_of(length), prompt_of(length))
    assert reused == (length - 1) // grid * grid


def test_prompt_longer_than_chunk_reuses_whole_prefix_not_one_chunk() -> None:
    """dynamo 13188: the prefix is matched for the whole prompt, not for its first chunk."""
    assert cached_after(big(chunk=64), prompt_of(2000), prompt_of(2000)) == 1984


def test_two_prompts_sharing_1500_tokens_third_reuses_them() -> None:
    """vLLM 45238: the branch point is cached when the second prompt passes it."""
    harness = big()
    shared = prompt_of(1500)
    reused = cached_after(harness, shared + [1] * 300, shared + [2] * 300)
    assert reused >= 1024  # the last chunk end that both share
    harness.add("third", shared + [3] * 300, 4)
    harness.run()
    assert harness.cached["third"] == 1472  # 1,500 down to the grid


def test_two_prompts_sharing_1500_tokens_second_reuses_chunk_ends() -> None:
    """With chunks of 64 every grid line is a chunk end: the second prompt shares all."""
    shared = prompt_of(1500)
    harness = big(chunk=64)
    assert cached_after(harness, shared + [1] * 300, shared + [2] * 300) == 1472


@pytest.mark.parametrize(
    ("page_size", "extra_buffer"), [(1, False), (1, True), (16, True), (64, True)]
)
def test_multi_turn_reuses_whole_history_with_replies(page_size: int, extra_buffer: bool) -> None:
    """Each turn starts where the last reply ended: at its last token, or its last grid line."""
    harness = big(page_size=page_size, extra_buffer=extra_buffer)
    history = prompt_of(100)
    for turn in range(4):
        rid = f"t{turn}"
        harness.add(rid, history, 150)
        harness.run()
        assert harness.outputs[rid] == expected_output(history, 150, VOCAB, set())
        if turn:
            computed = len(history) - 8 - 1  # the last token of a reply is never computed
            step = 1 if page_size == 1 else harness.memory.grid
            assert harness.cached[rid] == computed // step * step
        history = history + harness.outputs[rid] + [turn] * 8


@pytest.mark.parametrize("interval", [64, 256])
def test_track_interval_long_prompt_states_at_every_multiple(interval: int) -> None:
    harness = big(track_interval=interval, chunk=1024)
    harness.add("a", prompt_of(1000), 2)
    harness.run()
    ends = {n.end for n in harness.memory.tree_cache.nodes() if n.state_slot is not None}
    assert set(range(interval, 1000, interval)) <= ends


def test_without_radix_cache_nothing_is_reused_or_kept() -> None:
    harness = big(radix=False)
    assert cached_after(harness, prompt_of(500), prompt_of(500)) == 0
    for pool in harness.scheduler.pool_report().values():
        assert pool["available"] == pool["total"]


def test_retracted_request_reports_cached_tokens_of_first_admission() -> None:
    harness = Harness(Shape(num_tokens=160, num_states=8), max_req_len=150)
    for i in range(4):
        harness.add(f"r{i}", [i, *prompt_of(20, i)], 100)
    harness.run()
    assert harness.scheduler.planner.num_retracted > 0
    assert set(harness.cached.values()) == {0}


# -- profiling -----------------------------------------------------------------------------------


class TimedPipeline(FakePipeline):
    """Times that follow the latency model, and an error from the given plan on."""

    fail_at: int | None = None
    raise_at: int | None = None
    stages = 1

    def poll(self, timeout_s: float) -> StepResult | None:
        plan: StepPlan | None = self._pending[0] if self._pending else None
        if plan is not None and self.raise_at is not None and plan.seq >= self.raise_at:
            raise ConnectionError("a stage is gone")
        result = super().poll(timeout_s)
        if result is None or plan is None:
            return result
        error = "stage 1: out of memory" if plan.seq == self.fail_at else ""
        seconds = 1e-3 + 1e-5 * plan.num_tokens
        spans = [StageSpan(0.0, 0.0, seconds)] * self.stages
        return StepResult(result.seq, result.tokens, spans, error)


def profiling_harness(
    num_states: int = 64, pp_size: int = 2, hybrid: bool = True, extra_buffer: bool = False
) -> Harness:
    shape = Shape(num_tokens=2048, num_states=num_states, hybrid=hybrid, extra_buffer=extra_buffer)
    harness = Harness(shape, pp_size=pp_size, chunked_prefill_size=128, max_req_len=2000,
                      context_len=2048, enable_dynamic_chunking=True)  # fmt: skip
    pipeline = TimedPipeline(harness.stage)
    pipeline.stages = pp_size
    harness.scheduler.pipeline = pipeline
    return harness


@pytest.mark.parametrize("extra_buffer", [False, True])
@pytest.mark.parametrize("num_states", [2, 5, 11, 12, 64])
def test_profiling_any_number_of_slots_leaves_every_pool_empty(
    num_states: int, extra_buffer: bool
) -> None:
    """SGLang 31321: 64 Mamba slots, and fewer than there are samples."""
    harness = profiling_harness(num_states, extra_buffer=extra_buffer)
    before = harness.scheduler.pool_report()
    harness.scheduler.profile_and_init_predictor()
    assert harness.scheduler.chunking_report["enabled"], harness.scheduler.chunking_report
    assert harness.scheduler.chunking_report["num_profile_requests"] >= 12
    assert harness.scheduler.pool_report() == before
    assert before["mamba"]["available"] == num_states
    harness.add("a", prompt_of(500), 10)
    harness.run()
    assert harness.outputs["a"] == expected_output(prompt_of(500), 10, VOCAB, set())


def test_profiling_model_without_states_leaves_every_pool_empty() -> None:
    harness = profiling_harness(hybrid=False)
    before = harness.scheduler.pool_report()
    harness.scheduler.profile_and_init_predictor()
    assert harness.scheduler.pool_report() == before


@pytest.mark.parametrize("fail_at", [1, 2, 7])
def test_profiling_stage_fails_static_chunks_and_empty_pools(fail_at: int, caplog) -> None:
    """SGLang 23057: freed whatever happens, served with static chunks, one clear line."""
    harness = profiling_harness()
    harness.scheduler.pipeline.fail_at = fail_at
    before = harness.scheduler.pool_report()
    harness.scheduler.profile_and_init_predictor()
    assert harness.scheduler.pool_report() == before
    report = harness.scheduler.chunking_report
    assert not report["enabled"] and "stage 1: out of memory" in report["reason"]
    lines = [r.message for r in caplog.records if "Dynamic chunking will be disabled" in r.message]
    assert len(lines) == 1
    harness.add("a", prompt_of(300), 3)
    harness.run()
    assert harness.finished["a"].type == "length"


def test_profiling_pipeline_raises_gives_slots_back_first() -> None:
    harness = profiling_harness()
    harness.scheduler.pipeline.raise_at = 5
    before = harness.scheduler.pool_report()
    with pytest.raises(ConnectionError):
        harness.scheduler.profile_and_init_predictor()
    assert harness.scheduler.pool_report() == before and not harness.scheduler.borrowed


@pytest.mark.parametrize("num_states", [11, 64])
def test_profiling_without_mamba_free_is_noticed(num_states: int) -> None:
    """Without its clean-up lines the start-up fails here: the fault of SGLang 31321."""
    harness = profiling_harness(num_states)
    with skip_mamba_free_in_profiling(), pytest.raises(RuntimeError, match=r"Mamba slot \d+"):
        harness.scheduler.profile_and_init_predictor()


def test_statuses_of_request_only_go_where_the_table_says() -> None:
    harness = Harness(Shape())
    harness.add("a", [1, 2], 3)
    harness.step()
    (req,) = harness.scheduler.planner.running
    harness.run()
    with pytest.raises(RuntimeError, match="finished -> decoding"):
        req.to(ReqStatus.DECODING)
