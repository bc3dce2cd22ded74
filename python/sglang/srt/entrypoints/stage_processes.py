"""The stage processes as the front end sees them: started, watched, ended.

They are plain child processes (`python -m sglang.srt.managers.stage_process`), not
multiprocessing ones: nothing of the parent's script runs again in them, so they can be started
from a script without a main guard and from a notebook. Their configuration comes as one JSON line
on stdin; stdin stays open, and its end tells a stage that the parent is gone.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from typing import IO, cast

import sglang
from sglang.srt.server_args import ServerArgs

STAGE_MODULE = "sglang.srt.managers.stage_process"
_POLL_SECONDS = 0.05


class StageProcesses:
    """The stages of this machine. Owns the processes; every path ends in `stop` or `kill`."""

    def __init__(self, server_args: ServerArgs, folder: str) -> None:
        self.to_scheduler = f"ipc://{folder}/scheduler"
        self.to_frontend = f"ipc://{folder}/frontend"
        self.pp_ranks = list(server_args.local_pp_ranks)
        self._server_args = server_args
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Start one process a stage and hand each its configuration."""
        init_method = f"tcp://{self._server_args.dist_init_addr or _free_local_address()}"
        environment = self._environment()
        for pp_rank in self.pp_ranks:
            process = subprocess.Popen(
                [sys.executable, "-m", STAGE_MODULE],
                stdin=subprocess.PIPE,
                env=environment,
                # A Ctrl-C in the terminal reaches the parent alone, which lets requests finish.
                start_new_session=True,
            )
            self._processes[pp_rank] = process
            config = {
                "server_args": json.loads(self._server_args.to_json()),
                "pp_rank": pp_rank,
                "to_scheduler": self.to_scheduler,
                "to_frontend": self.to_frontend,
                "dist_init_method": init_method,
            }
            stdin = cast(IO[bytes], process.stdin)
            try:
                stdin.write(json.dumps(config).encode() + b"\n")
                stdin.flush()
            except BrokenPipeError:
                pass  # it died already: `exited` tells

    def exited(self) -> list[str]:
        """One phrase for each stage that has ended, such as `stage 1 was killed by SIGKILL`."""
        phrases = []
        for pp_rank, process in self._processes.items():
            status = process.poll()
            if status is not None:
                phrases.append(f"stage {pp_rank} (pid {process.pid}) {_describe_status(status)}")
        return phrases

    def ended_in_order(self) -> bool:
        """Whether all stages of this machine have ended with status 0."""
        return all(process.poll() == 0 for process in self._processes.values())

    async def join(self, timeout_seconds: float) -> bool:
        """Wait for all stages to end by themselves; False when one still runs after the time."""
        deadline = time.monotonic() + timeout_seconds
        while len(self.exited()) < len(self._processes):
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(_POLL_SECONDS)
        return True

    async def stop(self, grace_seconds: float = 5.0) -> None:
        """End all stages: asked first, killed after `grace_seconds`."""
        for process in self._processes.values():
            if process.poll() is None:
                process.terminate()
        await self.join(grace_seconds)
        self.kill()

    def kill(self) -> None:
        """Kill whatever still runs, and reap it."""
        for process in self._processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()
            if process.stdin is not None:
                process.stdin.close()

    def _environment(self) -> dict[str, str]:
        environment = dict(os.environ)
        threads = max(1, (os.cpu_count() or 1) // len(self.pp_ranks))
        environment.setdefault("OMP_NUM_THREADS", str(threads))
        # The children import the same sglang, wherever this one came from.
        root = os.path.dirname(os.path.dirname(os.path.abspath(sglang.__file__)))
        paths = [root, environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        return environment


def _describe_status(status: int) -> str:
    if status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    return f"exited with status {status}"


def _free_local_address() -> str:
    """A free port of the loopback interface; the first stage listens on it a moment later."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"
