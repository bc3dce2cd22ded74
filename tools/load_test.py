"""Load a real two-stage server with many streams at once, some of which vanish or are nonsense.

    PYTHONPATH=python python tools/load_test.py --streams 200 --seconds 120

Starts a server of the embedded model on loopback. Each of the streams sends one request after the
other: chat, completion or native, of a random length, 10 % of which are left in the middle and 5 %
of which are invalid. Passes when no valid request fails, every invalid one is refused with a 400,
greedy answers to the same prompt never differ, the pools are empty at the end and memory is flat.
Prints a summary; exit status 1 when anything is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

ROOT = Path(__file__).parents[1]
PROMPTS = [
    "Once upon a time",
    "The dog ran to the",
    "A cat is an animal that",
    "Tell me about the sea, please. " * 8,
    "One day, a little girl found a box in the garden. " * 16,
]
INVALID: list[tuple[str, dict[str, Any]]] = [
    ("/generate", {"input_ids": [10**6]}),
    ("/generate", {"text": "a", "sampling_params": {"temperature": -1}}),
    ("/v1/completions", {"prompt": "a", "n": 5_000_000}),
    ("/v1/completions", {"prompt": "a", "suffix": "b"}),
    ("/v1/chat/completions", {"messages": "hi"}),
    ("/v1/chat/completions", {"messages": [], "surprise": 1}),
]
MAX_GROWTH = 0.05  # of resident memory between the middle and the end


@dataclass
class Tally:
    """What happened."""

    counts: Counter[str] = field(default_factory=Counter)
    problems: Counter[str] = field(default_factory=Counter)
    ttft: list[float] = field(default_factory=list)
    tokens: int = 0
    texts: dict[str, set[str]] = field(default_factory=dict)


class Client:
    """One stream of requests after the other."""

    def __init__(
        self, http: httpx.AsyncClient, tally: Tally, seed: int, vanish_share: float
    ) -> None:
        self._http = http
        self._tally = tally
        self._random = random.Random(seed)
        self._vanish_share = vanish_share

    async def run(self, until: float, invalid_share: float) -> None:
        """Send until the time is over; what runs then is finished."""
        await asyncio.sleep(self._random.random())
        while time.monotonic() < until:
            try:
                if self._random.random() < invalid_share:
                    await self._send_invalid()
                else:
                    await self._send_valid()
            except (httpx.HTTPError, ValueError, KeyError) as error:
                self._tally.problems[f"{type(error).__name__}: {error}"] += 1

    async def _send_invalid(self) -> None:
        path, body = self._random.choice(INVALID)
        response = await self._http.post(path, json={**body, "stream": self._random.random() < 0.5})
        self._tally.counts["refused"] += 1
        if response.status_code != 400:
            self._tally.problems[f"invalid request answered with {response.status_code}"] += 1

    async def _send_valid(self) -> None:
        path, body, key = self._draw()
        leave_after = (
            self._random.randrange(8) if self._random.random() < self._vanish_share else None
        )
        started = time.monotonic()
        text, num_events, ended = "", 0, False
        async with self._http.stream("POST", path, json=body) as response:
            if response.status_code != 200:
                await response.aread()
                self._tally.problems[f"{response.status_code}: {response.text[:200]}"] += 1
                return
            async for line in response.aiter_lines():
                if num_events == leave_after:
                    self._tally.counts["left"] += 1
                    return
                if line == "data: [DONE]":
                    ended = True
                elif line.startswith("data: "):
                    num_events += 1
                    if num_events == 1:
                        self._tally.ttft.append(time.monotonic() - started)
                    text = self._read(path, json.loads(line[6:]), text)
        if not ended:
            self._tally.problems["a stream ended without [DONE]"] += 1
        self._tally.counts["answered"] += 1
        self._tally.texts.setdefault(key, set()).add(text)

    def _draw(self) -> tuple[str, dict[str, Any], str]:
        """Path, body, and what the text depends on."""
        prompt = self._random.choice(PROMPTS)
        length = self._random.choice([4, 16, 48])
        kind = self._random.choice(["/generate", "/v1/completions", "/v1/chat/completions"])
        key = f"{kind} {length} {prompt}"
        if kind == "/generate":
            params = {"max_new_tokens": length, "temperature": 0}
            return kind, {"text": prompt, "sampling_params": params, "stream": True}, key
        options = {"max_tokens": length, "temperature": 0, "stream": True}
        if kind == "/v1/completions":
            return kind, {"prompt": prompt, **options}, key
        return kind, {"messages": [{"role": "user", "content": prompt}], **options}, key

    def _read(self, path: str, event: dict[str, Any], text: str) -> str:
        if "error" in event:
            raise ValueError(f"error in a stream: {event['error']['message']}")
        self._tally.tokens += 1
        if path == "/generate":
            return str(event["text"])
        choice = event["choices"][0]
        piece = choice["text"] if path == "/v1/completions" else choice["delta"].get("content")
        return text + (piece or "")


def resident_bytes(pid: int) -> int:
    """Resident memory of a process and all below it."""
    process = psutil.Process(pid)
    return sum(p.memory_info().rss for p in [process, *process.children(recursive=True)])


async def load(url: str, pid: int, args: argparse.Namespace) -> tuple[Tally, dict[str, int]]:
    """Run all clients; returns the tally, and memory at the start, in the middle and at the end."""
    tally = Tally()
    limits = httpx.Limits(max_connections=args.streams + 8)
    memory = {"start": resident_bytes(pid)}
    async with httpx.AsyncClient(base_url=url, timeout=args.timeout, limits=limits) as http:
        until = time.monotonic() + args.seconds
        clients = [
            Client(http, tally, args.seed + i, args.disconnects) for i in range(args.streams)
        ]
        tasks = [asyncio.create_task(client.run(until, args.invalid)) for client in clients]
        await asyncio.sleep(args.seconds / 2)
        memory["middle"] = resident_bytes(pid)
        await asyncio.sleep(max(0.0, until - time.monotonic()))
        memory["end"] = resident_bytes(pid)
        await asyncio.gather(*tasks)
        await wait_idle(http, tally)
    memory["idle"] = resident_bytes(pid)
    return tally, memory


async def wait_idle(http: httpx.AsyncClient, tally: Tally) -> None:
    """Note a problem unless the pools are empty within ten seconds."""
    deadline = time.monotonic() + 10
    while True:
        pools = (await http.get("/server_info")).json()["memory_pools"]
        if not any(pool["held"] or pool["protected"] for pool in pools.values()):
            tally.counts["pools empty"] = 1
            return
        if time.monotonic() > deadline:
            tally.problems[f"pools are not empty: {pools}"] += 1
            return
        await asyncio.sleep(0.2)


def judge(tally: Tally, memory: dict[str, int]) -> None:
    """Add what only shows at the end to the problems."""
    different = [key for key, texts in tally.texts.items() if len(texts) > 1]
    if different:
        tally.problems[f"greedy answers differ: {different[:3]}"] += len(different)
    growth = memory["end"] / memory["middle"] - 1
    if growth > MAX_GROWTH:
        tally.problems[f"memory grew by {growth:.1%} from the middle to the end"] += 1


def summary(args: argparse.Namespace, tally: Tally, memory: dict[str, int]) -> str:
    """The figures, one a line."""
    waits = sorted(tally.ttft) or [0.0]
    shown = {
        "command": f"tools/load_test.py --streams {args.streams} --seconds {args.seconds:g}",
        "machine": f"{os.cpu_count()} cores",
        "streams at once": args.streams,
        "answered": tally.counts["answered"],
        "left in the middle": tally.counts["left"],
        "invalid, refused": tally.counts["refused"],
        "answered per second": f"{tally.counts['answered'] / args.seconds:.1f}",
        "events per second": f"{tally.tokens / args.seconds:.0f}",
        "TTFT p50 / p99 (s)": f"{waits[len(waits) // 2]:.2f} / {waits[int(len(waits) * 0.99)]:.2f}",
        "distinct greedy prompts": len(tally.texts),
        "pools empty afterwards": bool(tally.counts["pools empty"]),
        "problems": dict(tally.problems) or "none",
    }
    shown |= {f"memory {when} (MiB)": size >> 20 for when, size in memory.items()}
    return "".join(f"{name:28} {value}\n" for name, value in shown.items())


def start_server(args: argparse.Namespace, log: Any) -> tuple[subprocess.Popen[bytes], str]:
    """The server's process and its address; it may still be loading."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "sglang.launch_server", "--model-path", "tiny-hybrid"]
    command += ["--device", "cpu", "--pp-size", "2", "--port", str(port), *args.flags.split()]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment, stderr=log)
    return process, f"http://127.0.0.1:{port}"


def wait_ready(process: subprocess.Popen[bytes], url: str) -> None:
    """Wait until `/health` says so; raises RuntimeError when the server ends or a minute passes."""
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        try:
            if httpx.get(f"{url}/health").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise RuntimeError("the server did not become ready")


def main() -> int:
    """Start the server, load it, say what happened."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=200, help="requests at once")
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--disconnects", type=float, default=0.1, help="share of valid requests")
    parser.add_argument("--invalid", type=float, default=0.05, help="share of all requests")
    parser.add_argument("--timeout", type=float, default=120, help="seconds without a byte")
    parser.add_argument("--flags", default="--max-running-requests 64", help="of the server")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, help="file for the summary")
    args = parser.parse_args()
    with tempfile.TemporaryFile() as log:
        process, url = start_server(args, log)
        try:
            wait_ready(process, url)
            tally, memory = asyncio.run(load(url, process.pid, args))
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)
    judge(tally, memory)
    text = summary(args, tally, memory)
    print(text, end="")
    if args.output:
        args.output.write_text(text)
    return 1 if tally.problems else 0


if __name__ == "__main__":
    sys.exit(main())
