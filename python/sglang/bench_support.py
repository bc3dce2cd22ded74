"""A server under measurement: started here, asked over HTTP, its trace read back."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PYTHON_ROOT = Path(__file__).resolve().parents[1]
STARTUP_S = 300.0
REQUEST_S = 1800.0


class BenchError(RuntimeError):
    """A measurement that cannot be made; one line that says why."""


@dataclass(frozen=True)
class TracedChunk:
    """One prefill micro-batch of one request: tokens [start, end); seconds, one entry a stage."""

    start: int
    end: int
    started_s: tuple[float, ...]
    ended_s: tuple[float, ...]

    @property
    def num_tokens(self) -> int:
        """Length of the chunk."""
        return self.end - self.start

    @property
    def stage_seconds(self) -> list[float]:
        """Time on each stage."""
        return [e - s for s, e in zip(self.started_s, self.ended_s, strict=True)]

    @property
    def seconds(self) -> float:
        """Time on the slowest stage."""
        return max(self.stage_seconds)


class BenchServer:
    """One `launch_server` process with `--pp-trace`; its log and trace lie in `folder`."""

    def __init__(
        self, folder: Path, model_path: str, flags: Sequence[str], environment: dict[str, str]
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.trace_path = folder / "trace.json"
        self.log_path = folder / "server.log"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        path = os.pathsep.join(p for p in (str(PYTHON_ROOT), os.environ.get("PYTHONPATH")) if p)
        command = [sys.executable, "-m", "sglang.launch_server", "--model-path", model_path]
        command += ["--port", str(self.port), "--pp-trace", str(self.trace_path), *flags]
        with self.log_path.open("w") as log:
            self._process = subprocess.Popen(
                command, env={**os.environ, "PYTHONPATH": path, **environment},
                stdout=log, stderr=log,
            )  # fmt: skip

    def wait_ready(self) -> None:
        """Wait until it serves. Raises BenchError with the end of its log when it does not."""
        deadline = time.monotonic() + STARTUP_S
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5).read()
                return
            except OSError:
                time.sleep(0.2)
        lines = self.log_path.read_text().strip().splitlines()[-5:]
        raise BenchError("the server did not come up: " + " | ".join(lines))

    def server_info(self) -> dict[str, Any]:
        """The answer of /server_info."""
        with urllib.request.urlopen(
            f"http://127.0.0.1:{self.port}/server_info", timeout=30
        ) as reply:
            return dict(json.load(reply))

    def generate(self, rid: str, input_ids: list[int], max_new_tokens: int = 1) -> float:
        """Send a prompt; seconds until the answer is there (with one token: to the first token)."""
        params = {"max_new_tokens": max_new_tokens, "temperature": 0, "ignore_eos": True}
        body = {"rid": rid, "input_ids": input_ids, "sampling_params": params}
        payload = json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/generate",
            payload,
            {"Content-Type": "application/json"},
        )
        started = time.perf_counter()
        try:
            with urllib.request.urlopen(request, timeout=REQUEST_S) as reply:
                reply.read()
        except urllib.error.HTTPError as error:
            message = error.read().decode(errors="replace")
            raise BenchError(f"{len(input_ids)} tokens: {error.code} {message}") from error
        except OSError as error:
            raise BenchError(f"{len(input_ids)} tokens: {error}") from error
        return time.perf_counter() - started

    def traced(self, rids: Sequence[str], timeout_s: float = 20.0) -> dict[str, list[TracedChunk]]:
        """Prefill micro-batches of these requests. The trace is written when the server is idle."""
        deadline = time.monotonic() + timeout_s
        while True:
            found = read_trace(self.trace_path) if self.trace_path.exists() else {}
            missing = [rid for rid in rids if rid not in found]
            if not missing:
                return {rid: found[rid] for rid in rids}
            if time.monotonic() > deadline:
                raise BenchError(f"{self.trace_path} lacks request {missing[0]}")
            time.sleep(0.2)

    def close(self) -> None:
        """End it."""
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def read_trace(path: Path) -> dict[str, list[TracedChunk]]:
    """Prefill micro-batches of a `--pp-trace` file by request, those of one row only.

    Empty while the file is being rewritten.
    """
    try:
        events = json.loads(path.read_text())["traceEvents"]
    except ValueError:
        return {}
    batches: dict[int, list[dict[str, Any]]] = {}
    for event in events:
        if event["ph"] == "X" and event["name"] != "queued" and event["args"]["prefill_tokens"]:
            batches.setdefault(event["args"]["microbatch"], []).append(event)
    found: dict[str, list[TracedChunk]] = {}
    for _, spans in sorted(batches.items()):
        chunks = spans[0]["args"]["chunks"]
        if len(chunks) != 1:
            continue
        ((rid, start, end),) = chunks
        spans.sort(key=lambda event: event["tid"])
        starts = tuple(event["ts"] / 1e6 for event in spans)
        ends = tuple((event["ts"] + event["dur"]) / 1e6 for event in spans)
        # The front end makes ids unique by a suffix of its own, "<rid>#<hex>".
        found.setdefault(rid.rpartition("#")[0] or rid, []).append(
            TracedChunk(start, end, starts, ends)
        )
    return found


def bubble_fractions(chunks: Sequence[TracedChunk]) -> list[float]:
    """Idle share of each stage from the first start to the last end of one request's prefill."""
    begin = min(chunk.started_s[0] for chunk in chunks)
    end = max(chunk.ended_s[-1] for chunk in chunks)
    stages = range(len(chunks[0].started_s))
    busy = [sum(chunk.stage_seconds[s] for chunk in chunks) for s in stages]
    return [1 - b / (end - begin) for b in busy]
