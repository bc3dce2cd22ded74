"""A server as a process of its own, with its log, its port and its folder for sockets."""

from __future__ import annotations

import contextlib
import glob
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence

import httpx

TEST_ROOT = pathlib.Path(__file__).parents[1]
PYTHON_ROOT = TEST_ROOT.parents[1] / "python"
READY = "The server is fired up and ready to roll!"


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


@contextlib.contextmanager
def server_process(
    module: str, model: object, *flags: str, **environment: str
) -> Iterator[ServerProcess]:
    """A server that has been started, not waited for; it is gone afterwards."""
    running = ServerProcess(module, str(model), *flags, **environment)
    try:
        yield running
    finally:
        running.close()


def assert_pools_empty(url: str, seconds: float = 5) -> None:
    """Fail unless the server at `url` holds nothing for anyone within `seconds`."""
    deadline = time.monotonic() + seconds
    while not _is_idle(info := httpx.get(f"{url}/server_info").json()):
        assert time.monotonic() < deadline, info["memory_pools"]
        time.sleep(0.05)


def _is_idle(info: dict) -> bool:
    pools = info["memory_pools"].values()
    no_holder = all(pool["held"] == pool["protected"] == 0 for pool in pools)
    counts = all(pool["available"] + pool["evictable"] == pool["total"] for pool in pools)
    return no_holder and counts and info["num_running_reqs"] == info["num_queue_reqs"] == 0


def assert_gone(pids: list[int]) -> None:
    """Fail unless the processes end within five seconds."""
    deadline = time.monotonic() + 5
    while any(os.path.exists(f"/proc/{pid}") for pid in pids):
        assert time.monotonic() < deadline, "a stage process is left"
        time.sleep(0.02)
