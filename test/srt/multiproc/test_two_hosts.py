"""One server on two machines: same tokens, an orderly end, and what happens when the cable is cut.

The machines are network namespaces, which need root; elsewhere these tests are skipped.
"""

from __future__ import annotations

import contextlib
import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.server_process import ServerProcess, server_process
from support.tiny_models import make_model
from support.two_hosts import ADDRESSES, TwoHosts, answer, two_hosts

pytestmark = pytest.mark.slow

MODULE = "sglang.launch_server"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("hosts"), "deep")


@pytest.fixture
def hosts() -> Iterator[TwoHosts]:
    with two_hosts() as made:
        yield made


@contextlib.contextmanager
def launcher(hosts: TwoHosts, model: Path, node_rank: int, *flags: str) -> Iterator[ServerProcess]:
    address = f"{ADDRESSES[0]}:29511"
    place = ("--nnodes", "2", "--node-rank", str(node_rank), "--dist-init-addr", address)
    flags = ("--device", "cpu", *place, *flags)
    running = ServerProcess(MODULE, str(model), *flags, prefix=hosts.inside(node_rank))
    try:
        yield running
    finally:
        running.close()


def request(prompt: list[int], max_new_tokens: int) -> dict[str, object]:
    params = {"max_new_tokens": max_new_tokens, "temperature": 0, "ignore_eos": True}
    return {"input_ids": prompt, "sampling_params": params}


@pytest.mark.parametrize("pp_size", ["2", "4"])
def test_two_hosts_give_the_tokens_of_one_and_end_together(
    hosts: TwoHosts, model: Path, pp_size: str
) -> None:
    body = request([(5 * i) % 250 for i in range(200)], 12)
    flags = ("--pp-size", pp_size, "--chunked-prefill-size", "64")
    with launcher(hosts, model, 0, *flags) as first, launcher(hosts, model, 1, *flags) as second:
        first.wait_ready(40)
        status, found = answer(hosts.ask(f"{first.url}/generate", body), 30)
        assert status == 200, found
        first.process.send_signal(signal.SIGTERM)
        assert (first.wait_end(), second.wait_end()) == (0, 0), (first.lines, second.lines)
    with server_process(MODULE, model, "--device", "cpu") as alone:
        alone.wait_ready(40)
        import httpx

        expected = httpx.post(f"{alone.url}/generate", json=body, timeout=30).json()
    assert found["output_ids"] == expected["output_ids"]


def test_a_cut_cable_answers_everybody_and_ends_both_sides(hosts: TwoHosts, model: Path) -> None:
    """In the middle of a prompt of many chunks; no connection is closed, so nobody is told."""
    flags = ("--pp-size", "2", "--chunked-prefill-size", "16", "--watchdog-timeout", "4")
    with launcher(hosts, model, 0, *flags) as first, launcher(hosts, model, 1, *flags) as second:
        first.wait_ready(40)
        client = hosts.ask(f"{first.url}/generate", request([7] * 2000, 40))
        time.sleep(0.7)
        hosts.cut()
        cut = time.monotonic()
        status, found = answer(client, 20)
        assert status >= 500, "the request was over before the cable was cut"
        assert "stage 1" in json.dumps(found)
        assert time.monotonic() - cut < 4 + 5
        assert (first.wait_end(), second.wait_end()) == (1, 1)
        assert any("stage 1" in line and "4 s" in line for line in first.lines), first.lines
        assert any("stage 0 could not be reached" in line for line in second.lines), second.lines


def test_a_machine_that_does_not_come_is_named(hosts: TwoHosts, model: Path) -> None:
    flags = ("--pp-size", "2", "--dist-timeout", "3")
    with launcher(hosts, model, 0, *flags) as first:
        assert first.wait_end(30) == 1
        assert any("stage 1 of 2 did not join within 3 s" in line for line in first.lines)


def test_machines_with_different_flags_are_told_which(hosts: TwoHosts, model: Path) -> None:
    with (
        launcher(hosts, model, 0, "--pp-size", "2") as first,
        launcher(hosts, model, 1, "--pp-size", "2", "--page-size", "16") as second,
    ):
        assert (first.wait_end(30), second.wait_end(30)) == (1, 1)
        words = "stage 1 was started with --page-size 16, stage 0 with 1"
        assert any(words in line for line in first.lines), first.lines
        assert any(words in line for line in second.lines), second.lines


def test_torchrun_starts_both_machines(hosts: TwoHosts, model: Path) -> None:
    """One command a machine, no ranks by hand."""
    body = request([3] * 100, 4)
    place = ("--nnodes", "2", "--nproc-per-node", "1", "--master-addr", ADDRESSES[0])
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(torchrun(hosts, model, rank, place)) for rank in (0, 1)]
        servers[0].wait_ready(60)
        status, found = answer(hosts.ask(f"{servers[0].url}/generate", body), 30)
        assert status == 200, found
        assert found["meta_info"]["completion_tokens"] == 4


@contextlib.contextmanager
def torchrun(
    hosts: TwoHosts, model: Path, node_rank: int, place: tuple[str, ...]
) -> Iterator[ServerProcess]:
    ours = ("--device", "cpu", "--pp-size", "2")
    running = ServerProcess(
        "torch.distributed.run",
        str(model),
        *ours,
        prefix=hosts.inside(node_rank),
        before=(*place, "--node-rank", str(node_rank), "-m", MODULE),
    )
    try:
        yield running
    finally:
        running.process.send_signal(signal.SIGTERM)
        running.wait_end(20)
        running.close()
