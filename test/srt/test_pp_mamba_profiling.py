"""Start-up profiling of a hybrid model on a pipeline gives its Mamba slots back (SGLang #31321).

Dynamic chunking profiles synthetic prefill requests before the server is ready. Each takes KV, a
request slot and a Mamba slot. The clean-up once freed the first two only: with
`--max-mamba-cache-size 64` the pool ran dry in the middle, dynamic chunking was switched off, or
warm-up never ended. Each test here starts a server with few Mamba slots and fails, with a message
that says so, if profiling does not complete, dynamic chunking is not on, warm-up fails, a slot is
missing afterwards, or requests are not answered.

Only the command line, the log and HTTP are used, so that the same test runs against another
installation of SGLang:

    SGLANG_TEST_PYTHON      its interpreter (default: this one, with this repository's sources)
    SGLANG_TEST_MODEL       a hybrid model's folder (default: the embedded model)
    SGLANG_TEST_EXTRA_ARGS  more flags for its server
    SGLANG_TEST_TIMEOUT     seconds for the server to get ready (default 90)
    SGLANG_TEST_PYTHONPATH  sources of this project to run instead of this repository's

Another installation gets the first case only, and its fit may be refused for a reason of its own
(`Fitted quadratic coefficient ... is not positive`, by noise); that is reported, not failed, since
its slots are what is tested.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from support.server_process import READY, ServerProcess

PYTHON = os.environ.get("SGLANG_TEST_PYTHON")
MODEL = os.environ.get("SGLANG_TEST_MODEL", "tiny-hybrid")
EXTRA = shlex.split(os.environ.get("SGLANG_TEST_EXTRA_ARGS", ""))
TIMEOUT = float(os.environ.get("SGLANG_TEST_TIMEOUT", "90"))

PROFILING = "Profiling prefill latency for dynamic chunking"
FIT_REFUSED = "Fitted quadratic coefficient"
# What the log says when slots are lost, and what it means.
FAILURES = {
    "Not enough space for mamba cache": "profiling ran out of Mamba slots: they are not given back",
    "Dynamic chunking will be disabled": "profiling failed, so dynamic chunking was switched off",
    "Dynamic chunking is disabled": "profiling failed, so dynamic chunking was switched off",
    "memory check failed": "the pools do not add up after profiling: a slot was lost",
}

# (Mamba slots, further flags). The second has fewer slots than profiling takes samples.
CASES = [
    (64, ["--page-size", "1"]),
    (8, ["--page-size", "16", "--disable-radix-cache", "--max-running-requests", "4"]),
]
if PYTHON:
    CASES = [(64, [])]


def device_flags() -> list[str]:
    """GPUs where there are two, the CPU otherwise."""
    if PYTHON and "--device" in EXTRA:
        return []
    if shutil.which("nvidia-smi"):
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
        if listed.stdout.count("GPU ") >= 2:
            return ["--device", "cuda"]
    return ["--device", "cpu"]


@contextmanager
def hybrid_server(mamba_slots: int, flags: list[str]) -> Iterator[ServerProcess]:
    """A two-stage server that has come up; every way of not coming up is a failed assertion."""
    server = ServerProcess(
        "sglang.launch_server", MODEL,
        "--pp-size", "2", "--enable-dynamic-chunking", "--chunked-prefill-size", "256",
        "--max-mamba-cache-size", str(mamba_slots), *device_flags(), *flags, *EXTRA,
        python=PYTHON,
    )  # fmt: skip
    try:
        wait_until_ready(server)
        yield server
    finally:
        server.close()


def wait_until_ready(server: ServerProcess) -> None:
    """Watch the log as it comes; a line that tells of lost slots fails at once."""
    deadline = time.monotonic() + TIMEOUT
    seen = 0
    while True:
        lines = server.lines[seen:]
        seen += len(lines)
        for line in lines:
            check_line(line)
            if READY in line:
                return
        ended = server.process.poll()
        assert ended is None, f"the server ended with status {ended}: {server.lines[-5:]}"
        assert time.monotonic() < deadline, (
            f"warm-up did not succeed within {TIMEOUT:.0f} s; last lines: {server.lines[-5:]}"
        )
        time.sleep(0.05)


def check_line(line: str) -> None:
    """Fail on a line that tells of lost slots."""
    if FIT_REFUSED in line and PYTHON:
        return  # noise of its own; the slots are what is tested: see above
    for sign, meaning in FAILURES.items():
        assert sign not in line, f"{meaning}: {line[line.index(sign) :][:300]}"


def call(server: ServerProcess, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """GET, or POST with a body; JSON back."""
    request = urllib.request.Request(
        server.url + path,
        None if body is None else json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        assert answer.status == 200
        text = answer.read()
    found: dict[str, Any] = json.loads(text) if text.strip() else {}
    return found


@pytest.mark.slow
@pytest.mark.parametrize("mamba_slots, flags", CASES, ids=[f"{c[0]}_slots" for c in CASES])
def test_profiling_gives_mamba_slots_back(mamba_slots: int, flags: list[str]) -> None:
    """The whole start: profiling, predictor, warm-up, empty pools, answers."""
    with hybrid_server(mamba_slots, flags) as server:
        check_server(server, mamba_slots)


def check_server(server: ServerProcess, mamba_slots: int) -> None:
    """What must be true of a server that says that it is ready."""
    log = "\n".join(server.lines)
    assert PROFILING in log, "no profiling took place"
    refused = [line for line in server.lines if FIT_REFUSED in line]
    if PYTHON and refused:
        print(f"profiling completed; its fit was refused: {refused[0].strip()}")
    else:
        assert "Predictor ready" in log, "profiling completed without a predictor"
        print("profiling completed; dynamic chunking is on")
    call(server, "/health")
    check_pools(call(server, "/server_info"))
    check_answers(server, mamba_slots + 6)
    check_pools(call(server, "/server_info"))
    for line in server.lines:
        check_line(line)


def check_pools(info: dict[str, Any]) -> None:
    """All slots are free (or cached and evictable); an installation that does not say is asked
    more requests than lost slots would allow."""
    if "memory_pools" not in info:
        assert PYTHON, "/server_info lacks memory_pools"
        return
    chunking = info["dynamic_chunking"]
    assert chunking["enabled"], f"dynamic chunking is off: {chunking['reason']}"
    assert info["num_leaked_slots"] == 0, f"{info['num_leaked_slots']} slot(s) were lost"
    for name, pool in info["memory_pools"].items():
        assert pool["held"] == pool["protected"] == 0, f"{name}: slots are still held: {pool}"
        assert pool["available"] + pool["evictable"] == pool["total"], f"{name}: {pool}"


def check_answers(server: ServerProcess, count: int) -> None:
    """More different requests, one after another, than there are Mamba slots."""
    for i in range(count):
        body = {
            "text": f"{i} is the number of this request",
            "sampling_params": {"max_new_tokens": 2, "temperature": 0, "ignore_eos": True},
        }
        answer = call(server, "/generate", body)
        assert answer["meta_info"]["completion_tokens"] == 2
    body = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 4}
    answer = call(server, "/v1/completions", body)
    assert answer["choices"][0]["finish_reason"] in ("stop", "length")
