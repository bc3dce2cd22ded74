"""Admission is all or nothing, and a departing request leaves nothing behind."""

from __future__ import annotations

import pytest

from sglang.srt.managers.req_release import borrowed_req, release_req
from sglang.srt.managers.runtime_checker import check_memory
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.mem_cache.allocator import SlotError
from sglang.srt.sampling.sampling_params import SamplingParams
from support.scheduler_harness import Harness, Shape


def make_req(harness: Harness, rid: str, tokens: list[int], new: int = 10, arrival: int = 1) -> Req:
    owner = harness.memory.owners.register(f"request {rid}")
    params = SamplingParams(max_new_tokens=new, temperature=0)
    return Req(rid, tokens, params, arrival=arrival, owner=owner)


def everything(harness: Harness) -> dict:
    """All numbers that a failed admission must leave alone."""
    memory = harness.memory
    return {
        "pools": harness.scheduler.pool_report(),
        "locks": [
            (n.id, n.lock_ref, n.state_lock, n.state_slot) for n in memory.tree_cache.nodes()
        ],
        "updates": list(memory.table_updates),
    }


def served(harness: Harness, prompt: list[int], new: int = 4) -> None:
    harness.add(f"seed{len(harness.finished)}", prompt, new)
    harness.run()


PROMPT = [i % 89 for i in range(100)]


@pytest.mark.parametrize("extra_buffer", [False, True])
def test_admission_no_kv_room_changes_nothing(extra_buffer: bool) -> None:
    """SGLang 16067, 21404: a request that does not fit after its prefix match keeps no slot."""
    harness = Harness(Shape(num_tokens=256, extra_buffer=extra_buffer), chunked_prefill_size=64)
    served(harness, PROMPT)
    before = everything(harness)
    req = make_req(harness, "big", PROMPT + [1] * 100)
    assert harness.memory.try_admit(req, promised=200, reserve=10, alone=False) is None
    after = everything(harness)
    assert after == before
    assert (req.req_pool_idx, req.mamba_pool_idx, req.last_node) == (None, None, None)


@pytest.mark.parametrize("extra_buffer", [False, True])
def test_admission_no_mamba_slot_changes_nothing(extra_buffer: bool) -> None:
    """Same, when KV fits and the Mamba slots do not: prefix lock and copied state included."""
    shape = Shape(num_states=5, extra_buffer=extra_buffer)
    harness = Harness(shape, chunked_prefill_size=64, max_running_requests=2)
    served(harness, PROMPT)
    pool = harness.memory.mamba_pool
    assert pool is not None
    hoarder = harness.memory.owners.register("hoarder")
    match = harness.memory.tree_cache.match_prefix(make_req(harness, "m", PROMPT).tokens[:99])
    assert match.state_slot is not None
    harness.memory.tree_cache.lock_state(match.node, 1)
    harness.memory.tree_cache.evict_states(9)
    hoard = pool.alloc(pool.available_size(), hoarder)
    before = everything(harness)
    req = make_req(harness, "r", PROMPT)
    assert harness.memory.try_admit(req, 0, 0, alone=True) is None
    assert everything(harness) == before
    assert req.req_pool_idx is None and req.mamba_pool_idx is None
    pool.free(hoard, hoarder)
    harness.memory.tree_cache.lock_state(match.node, -1)
    admitted = harness.memory.try_admit(req, 0, 0, alone=True)
    assert admitted is not None and admitted.prefix_len == match.prefix_len
    release_req(harness.memory, req)
    check_memory(harness.memory, [])


def test_admission_no_request_slot_gives_states_back() -> None:
    harness = Harness(Shape(), max_running_requests=1)
    first, second = make_req(harness, "a", [1, 2, 3]), make_req(harness, "b", [4, 5, 6])
    assert harness.memory.try_admit(first, 0, 0, alone=True) is not None
    before = everything(harness)
    assert harness.memory.try_admit(second, 0, 0, alone=False) is None
    assert everything(harness) == before and second.mamba_pool_idx is None
    release_req(harness.memory, first)
    check_memory(harness.memory, [])


def test_release_twice_second_does_nothing() -> None:
    """SGLang 12432: the one release path may be reached twice; the slots go back once."""
    harness = Harness(Shape())
    req = make_req(harness, "a", PROMPT)
    harness.memory.try_admit(req, 0, 0, alone=True)
    harness.memory.extend(req, 50)
    release_req(harness.memory, req)
    before = everything(harness)
    release_req(harness.memory, req)
    assert everything(harness) == before


def test_double_free_of_kv_names_slot_and_both_owners() -> None:
    """SGLang 12432, 12994: a double free raises at once."""
    harness = Harness(Shape())
    first, second = make_req(harness, "first", PROMPT), make_req(harness, "second", PROMPT)
    harness.memory.try_admit(first, 0, 0, alone=True)
    slots = harness.memory.extend(first, 3)
    allocator = harness.memory.token_to_kv_pool_allocator
    allocator.free(slots, first.owner)
    with pytest.raises(SlotError, match=rf"KV page {slots[0]} .*freed by request first"):
        allocator.free(slots, first.owner)
    taken = allocator.alloc_extend(0, 0, 3, second.owner)
    assert sorted(taken) == sorted(slots)
    with pytest.raises(SlotError, match=r"held by request second.*freed by request first"):
        allocator.free(taken, first.owner)


@pytest.mark.parametrize("fail", [False, True])
def test_borrowed_req_whatever_happens_comes_back(fail: bool) -> None:
    """DESIGN rule 2: a temporary request cannot leak."""
    harness = Harness(Shape(page_size=4, extra_buffer=True))
    before = harness.scheduler.pool_report()

    def borrow() -> None:
        with borrowed_req(harness.memory, make_req(harness, "warm-up", PROMPT)) as req:
            harness.memory.try_admit(req, 0, 0, alone=True)
            harness.memory.extend(req, 30)
            if fail:
                raise KeyError("stage")

    if fail:
        with pytest.raises(KeyError):
            borrow()
    else:
        borrow()
    assert harness.scheduler.pool_report() == before
    check_memory(harness.memory, [])


def test_checkpoint_no_slot_free_is_skipped_and_counted() -> None:
    """SGLang 37943, 37066, 40128: optional caching never stops a request."""
    harness = Harness(Shape(num_states=1), max_running_requests=1, chunked_prefill_size=16)
    served(harness, PROMPT, 8)
    assert harness.finished["seed0"].type == "length"
    assert harness.memory.counters.skipped_checkpoints > 0
    reply = harness.control("server_info")
    assert reply.body["skipped_checkpoints"] == harness.memory.counters.skipped_checkpoints


def test_cached_part_of_request_is_never_evicted_under_it() -> None:
    harness = Harness(Shape(num_tokens=128, num_states=6), chunked_prefill_size=32)
    served(harness, PROMPT[:70], 1)
    req = make_req(harness, "r", PROMPT[:90])
    admitted = harness.memory.try_admit(req, 0, 0, alone=True)
    assert admitted is not None and admitted.prefix_len > 0
    harness.memory.tree_cache.evict(1000)
    check_memory(harness.memory, [req])
    assert harness.memory.tree_cache.usage().protected_tokens == admitted.prefix_len
    release_req(harness.memory, req, keep_in_cache=False)
    check_memory(harness.memory, [])


@pytest.mark.parametrize(("num_states", "extra_buffer"), [(1, False), (2, True)])
def test_admission_cached_state_in_the_last_slot_starts_from_nothing(
    num_states: int, extra_buffer: bool
) -> None:
    """A pool that holds one request holds it also when its own cached state fills the pool."""
    shape = Shape(num_states=num_states, extra_buffer=extra_buffer)
    harness = Harness(shape, max_running_requests=1, chunked_prefill_size=64)
    for i in range(3):
        harness.add(f"r{i}", PROMPT, 5)
        harness.run(max_steps=100)
        assert harness.outputs[f"r{i}"] == harness.outputs["r0"]
    states = harness.scheduler.pool_report()["mamba"]
    assert states["evictable"] + states["available"] == num_states


def test_admission_that_must_wait_costs_the_cache_no_state() -> None:
    """Two slots are needed, one could be evicted: nothing is, step after step."""
    shape = Shape(num_states=3, extra_buffer=True)
    harness = Harness(shape, max_running_requests=2, chunked_prefill_size=64)
    served(harness, PROMPT, 1)
    running = make_req(harness, "running", [5] * 20)
    assert harness.memory.try_admit(running, 0, 0, alone=True) is not None
    before = everything(harness)
    assert before["pools"]["mamba"]["evictable"] == 1
    waiting = make_req(harness, "waiting", [6] * 20)
    assert harness.memory.try_admit(waiting, 0, 0, alone=False) is None
    assert everything(harness) == before
    release_req(harness.memory, running)
    check_memory(harness.memory, [])
