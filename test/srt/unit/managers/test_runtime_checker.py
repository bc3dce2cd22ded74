"""The two leak checks find what is wrong, name it, and repair only what is safe."""

from __future__ import annotations

import pytest

from sglang.srt.managers.runtime_checker import MemoryViolation, check_memory, repair
from support.scheduler_harness import Harness, Shape

PROMPT = [i % 89 for i in range(60)]


def running(**config) -> Harness:
    """A harness with one request in the middle of its answer and another one's prefix cached."""
    harness = Harness(Shape(num_tokens=256), chunked_prefill_size=16, **config)
    harness.add("done", PROMPT, 3)
    harness.run()
    harness.add("r", PROMPT[:40] + [1] * 20, 30)
    for _ in range(8):
        harness.step()
    return harness


def problems(harness: Harness) -> MemoryViolation:
    with pytest.raises(MemoryViolation) as error:
        check_memory(harness.memory, harness.scheduler.live_reqs())
    return error.value


def test_check_with_legitimate_holders_passes() -> None:
    """SGLang 20185: running, cached and waiting requests are no leak."""
    harness = running(max_running_requests=1)
    harness.add("waiting", PROMPT, 3)
    harness.step()
    assert len(harness.scheduler.planner.waiting) == 1
    check_memory(harness.memory, harness.scheduler.live_reqs())


@pytest.mark.parametrize("pool", ["kv", "mamba", "req"])
def test_check_leaked_slot_names_pool_slot_and_owner_and_repairs(pool: str) -> None:
    harness = running()
    memory = harness.memory
    allocator = {
        "kv": memory.token_to_kv_pool_allocator.pages,
        "mamba": memory.mamba_pool.slots,
        "req": memory.req_to_token_pool.req_slots,
    }[pool]
    slots = allocator.alloc(2, memory.owners.register("request gone"))
    violation = problems(harness)
    assert f"{allocator.name} {slots[0]}" in str(violation) or str(slots[1]) in str(violation)
    assert "held by request gone" in str(violation)
    assert violation.repairable and sorted(violation.leaked[pool]) == sorted(slots)
    assert repair(memory, violation) == 2
    check_memory(memory, harness.scheduler.live_reqs())


def test_check_slot_used_twice_cannot_be_repaired() -> None:
    harness = running()
    req = harness.scheduler.planner.running[0]
    row = harness.memory.req_to_token_pool.rows[req.req_pool_idx]
    row[req.kv_len - 1] = row[req.kv_len - 2]
    violation = problems(harness)
    assert not violation.repairable and "used more than once" in str(violation)


def test_check_slot_used_and_free_cannot_be_repaired() -> None:
    harness = running()
    req = harness.scheduler.planner.running[0]
    row = harness.memory.req_to_token_pool.rows[req.req_pool_idx]
    pages = harness.memory.token_to_kv_pool_allocator.pages
    pages.free(row[req.kv_len - 1 : req.kv_len].copy(), req.owner)
    violation = problems(harness)
    assert not violation.repairable
    assert "used and free" in str(violation) and "request r" in str(violation)


def test_check_page_table_off_the_cache_is_found() -> None:
    harness = running()
    req = harness.scheduler.planner.running[0]
    assert req.protected_len > 0
    row = harness.memory.req_to_token_pool.rows[req.req_pool_idx]
    row[0], row[1] = int(row[1]), int(row[0])
    violation = problems(harness)
    assert "page table of request r" in str(violation) and not violation.repairable


def test_check_lock_that_nobody_holds_is_found_and_let_go() -> None:
    """A forgotten unlock loses KV as surely as a forgotten free: it can never be evicted."""
    harness = running()
    node = next(harness.memory.tree_cache.nodes())
    before = harness.scheduler.pool_report()
    harness.memory.tree_cache.inc_lock_ref(node)
    harness.memory.tree_cache.inc_lock_ref(node)
    violation = problems(harness)
    assert f"tree node {node.id} has" in str(violation) and violation.repairable
    assert repair(harness.memory, violation) == 2
    check_memory(harness.memory, harness.scheduler.live_reqs())
    assert harness.scheduler.pool_report() == before
    harness.run()


def test_check_lock_that_is_missing_cannot_be_repaired() -> None:
    harness = running()
    req = harness.scheduler.planner.running[0]
    harness.memory.tree_cache.dec_lock_ref(req.last_node)
    assert not problems(harness).repairable


@pytest.mark.parametrize("every_step", [False, True])
def test_scheduler_leak_in_production_is_counted_and_repaired_in_tests_fatal(
    every_step: bool,
) -> None:
    """Production goes on with repaired pools and says so; a test ends."""
    harness = running(check_memory_every_step=every_step)
    harness.run()
    mamba = harness.memory.mamba_pool
    mamba.alloc(3, harness.memory.owners.register("request gone"))
    free = mamba.available_size()
    if every_step:
        with pytest.raises(MemoryViolation):
            harness.scheduler.check_memory()
        return
    harness.add("again", PROMPT, 2)
    harness.run()
    assert harness.finished["again"].type == "length"
    assert harness.scheduler.metrics.leaked_slots == 3
    assert mamba.available_size() >= free
    assert harness.control("server_info").body["num_leaked_slots"] == 3


def test_scheduler_double_use_in_production_ends_the_server() -> None:
    """Somebody's answer is already wrong: no going on."""
    harness = running(check_memory_every_step=False)
    req = harness.scheduler.planner.running[0]
    row = harness.memory.req_to_token_pool.rows[req.req_pool_idx]
    row[req.kv_len - 1] = row[req.kv_len - 2]
    with pytest.raises(MemoryViolation):
        harness.scheduler.check_memory()


def test_cache_report_says_who_holds_what() -> None:
    harness = running()
    body = harness.control("cache_report").body
    (holder,) = body["requests"]
    assert holder["rid"] == "r" and holder["req_slot"] and holder["mamba_slots"]
    assert holder["kv_tokens"] >= holder["kv_tokens_of_cache"]
    cached = sum(node["tokens"] for node in body["tree"])
    kv = body["pools"]["kv"]
    assert cached == kv["evictable"] + kv["protected"]
    states = [node["state_slot"] for node in body["tree"] if node["state_slot"] is not None]
    assert len(set(states) | set(holder["mamba_slots"])) == len(states) + len(holder["mamba_slots"])
    assert body["pools"]["req"]["held"] == 1
