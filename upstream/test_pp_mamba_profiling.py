"""Start-up profiling of a hybrid model on a pipeline gives its Mamba slots back.

Dynamic chunking profiles synthetic prefill requests before the server is ready. Each takes KV, a
request slot and a Mamba slot; all three must be free again before the next one.

Usage: python3 -m unittest test_pp_mamba_profiling
(in CI: test/registered/pp/, `/rerun-group pp`)
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import pathlib
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sglang.test.ci.ci_register import register_cuda_ci
from sglang.test.test_utils import CustomTestCase

register_cuda_ci(est_time=180, stage="extra-a", runner_config="2-gpu-large")

PYTHON = sys.executable
MODEL = os.environ.get("SGLANG_TEST_MODEL", "Qwen/Qwen3.5-0.8B")
EXTRA = shlex.split(os.environ.get("SGLANG_TEST_EXTRA_ARGS", ""))
TIMEOUT = float(os.environ.get("SGLANG_TEST_TIMEOUT", "600"))

TEST_ROOT = pathlib.Path(__file__).parents[1]
PYTHON_ROOT = TEST_ROOT.parents[1] / "python"
READY = "The server is fired up and ready to roll!"


def assert_gone(pids: list[int]) -> None:
    """Fail unless the processes end within five seconds."""
    deadline = time.monotonic() + 5
    while any(os.path.exists(f"/proc/{pid}") for pid in pids):
        assert time.monotonic() < deadline, "a stage process is left"
        time.sleep(0.02)


class ServerProcess:
    """A launcher process with its output.

    `python` is the interpreter of another installation; without it the sources of this repository
    run in this one. `prefix` is a command that runs what follows it somewhere else; `before` are
    arguments in front of the flags.
    """

    def __init__(
        self,
        module: str,
        model: str,
        *flags: str,
        python: str | None = None,
        prefix: Sequence[str] = (),
        before: Sequence[str] = (),
        **environment: str,
    ) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        # A folder of its own for sockets shows whether they are removed; short, as paths must be.
        self.folder = pathlib.Path(f"/tmp/sgl-test-{self.port}")
        self.folder.mkdir()
        path = os.pathsep.join((str(PYTHON_ROOT), str(TEST_ROOT)))
        own = {"PYTHONPATH": os.environ.get("SGLANG_TEST_PYTHONPATH", path)}
        arguments = ["--model-path", str(model), "--port", str(self.port), *flags]
        self.process = subprocess.Popen(
            [*prefix, python or sys.executable, "-m", module, *before, *arguments],
            env={
                **os.environ,
                **({} if python else own),
                "TMPDIR": str(self.folder),
                # A tiny model gains nothing from threads, and loses much when they must wait.
                "OMP_NUM_THREADS": "1",
                **environment,
            },
            stdout=subprocess.PIPE if python else None,
            stderr=subprocess.STDOUT if python else subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=python is not None,
        )
        self._has_own_group = python is not None
        self._leaves_files = bool(python or before)  # of others: not ours to be strict with
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self.process.stdout or self.process.stderr or ():
            self.lines.append(line.rstrip())

    def wait_ready(self, seconds: float = 20) -> None:
        """Wait for the line that says so."""
        deadline = time.monotonic() + seconds
        while not any(READY in line for line in self.lines):
            assert self.process.poll() is None and time.monotonic() < deadline, self.lines
            time.sleep(0.02)

    def wait_end(self, seconds: float = 15) -> int:
        """Exit status."""
        status = self.process.wait(seconds)
        self._reader.join(5)
        return status

    def child_pids(self) -> list[int]:
        """The stage processes, in order of rank."""
        path = f"/proc/{self.process.pid}/task/{self.process.pid}/children"
        return [int(pid) for pid in pathlib.Path(path).read_text().split()]

    def close(self) -> None:
        """Kill what still runs, see that no child is left, and remove the folder."""
        children = self.child_pids() if self.process.poll() is None else []
        if self._has_own_group:  # its children may outlive it, and nobody else is in the group
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        elif self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._remove_folder()
        assert_gone(children)

    def _remove_folder(self) -> None:
        if self._leaves_files:
            shutil.rmtree(self.folder, ignore_errors=True)
            return
        for path in glob.glob(f"{self.folder}/*/*"):
            os.unlink(path)
        for path in glob.glob(f"{self.folder}/*"):
            os.rmdir(path)
        self.folder.rmdir()


PROFILING = "Profiling prefill latency for dynamic chunking"
FIT_REFUSED = "Fitted quadratic coefficient"
FAILURES = {
    "Not enough space for mamba cache": "profiling ran out of Mamba slots: they are not given back",
    "Dynamic chunking will be disabled": "profiling failed, so dynamic chunking was switched off",
    "Dynamic chunking is disabled": "profiling failed, so dynamic chunking was switched off",
    "memory check failed": "the pools do not add up after profiling: a slot was lost",
}


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


class TestPPMambaProfiling(CustomTestCase):
    def test_profiling_gives_mamba_slots_back(self):
        with hybrid_server(64, []) as server:
            check_server(server, 64)


if __name__ == "__main__":
    unittest.main()
