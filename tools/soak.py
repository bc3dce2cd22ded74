"""Soak test of a real two-stage server whose pools are far too small for its load.

    PYTHONPATH=python python tools/soak.py --requests 2000

Requests of random lengths with shared beginnings are stopped, aborted and disconnected at random.
Every answer is compared with the same request served alone by a one-stage server without a prefix
cache; an aborted one must be a beginning of it. The server checks its memory after every step
(SGLANG_CHECK_MEMORY=1) and ends at the first slot that is not where it should be. At the end its
pools must be empty. Prints the counts; exit status 1 when anything is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
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
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).parents[1]
MARGIN = 1e-4  # where the two best logits are closer, either token is right


@dataclass(frozen=True)
class Request:
    """One request and what will happen to it."""

    prompt: tuple[int, ...]
    max_new_tokens: int
    stop_token_ids: tuple[int, ...]
    fate: str  # answer, abort, disconnect
    when: float  # abort: seconds until it is sent; disconnect: pieces of the stream until then

    @property
    def key(self) -> str:
        """Equal for requests that must be answered alike."""
        return json.dumps([self.prompt, self.max_new_tokens, self.stop_token_ids])

    def body(self, **changes: Any) -> dict[str, Any]:
        """The JSON of `/generate`."""
        params = {
            "temperature": 0,
            "max_new_tokens": self.max_new_tokens,
            "stop_token_ids": list(self.stop_token_ids),
            "ignore_eos": True,
        }
        return {"input_ids": list(self.prompt), "sampling_params": params, **changes}


@dataclass
class Outcome:
    """Counts of a run, and what went wrong."""

    counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


def draw_requests(count: int, vocab_size: int, longest: int, seed: int) -> list[Request]:
    """Requests with shared beginnings; a third repeats an earlier one, some go on from it."""
    rng = random.Random(seed)
    beginnings = [
        [rng.randrange(vocab_size) for _ in range(longest // 2)] for _ in range(max(3, count // 80))
    ]
    drawn: list[Request] = []
    for _ in range(count):
        fate = rng.choices(["answer", "abort", "disconnect"], [70, 15, 15])[0]
        when = rng.choice([0.0, rng.expovariate(4.0)]) if fate == "abort" else rng.randrange(12)
        if drawn and rng.random() < 0.35:
            old = rng.choice(drawn)
            prompt, new, stop = old.prompt, old.max_new_tokens, old.stop_token_ids
        else:
            shared = rng.choice(beginnings)[: rng.choice([0, 16, 63, 64, 65, 128, 200])]
            own = [rng.randrange(vocab_size) for _ in range(rng.randrange(1, longest // 3))]
            prompt, new = (
                (*shared, *own),
                rng.choice([rng.randrange(1, 30), rng.randrange(30, 140)]),
            )
            stop = tuple(rng.sample(range(vocab_size), rng.choice([0, 0, 0, 8])))
        drawn.append(Request(prompt, new, stop, fate, when))
    return drawn


@contextlib.asynccontextmanager
async def serving(model: str, log: Path, *flags: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server that is started here and ended afterwards."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "sglang.launch_server", "--model-path", model,
               "--device", "cpu", "--port", str(port), *flags]  # fmt: skip
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "python"), os.environ.get("PYTHONPATH", "")]),
        "SGLANG_CHECK_MEMORY": "1",
        "OMP_NUM_THREADS": "1",
    }
    with log.open("w") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
        try:
            limits = httpx.Limits(max_connections=None)
            url = f"http://127.0.0.1:{port}"
            async with httpx.AsyncClient(base_url=url, timeout=300, limits=limits) as client:
                await _wait_healthy(client, process, log)
                yield client
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                raise RuntimeError(f"the server did not end; its log is {log}") from None


async def _wait_healthy(client: httpx.AsyncClient, process: Any, log: Path) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended at start:\n{log.read_text()[-3000:]}")
        with contextlib.suppress(httpx.TransportError):
            if (await client.get("/health")).status_code == 200:
                return
        await asyncio.sleep(0.2)
    raise RuntimeError(f"the server is not ready after 120 s; its log is {log}")


async def serve_alone(
    client: httpx.AsyncClient, requests: list[Request]
) -> dict[str, tuple[list[int], list[float]]]:
    """Each distinct request alone: its answer, and how far apart its two best tokens were."""
    answers: dict[str, tuple[list[int], list[float]]] = {}
    for request in requests:
        if request.key in answers:
            continue
        reply = await client.post(
            "/generate", json=request.body(return_logprob=True, top_logprobs_num=2)
        )
        reply.raise_for_status()
        answer = reply.json()
        margins = [best[0][0] - best[1][0] for best in answer["meta_info"]["output_top_logprobs"]]
        answers[request.key] = answer["output_ids"], margins
    return answers


class Soak:
    """Sends requests, several at once, and compares what comes back."""

    def __init__(
        self, client: httpx.AsyncClient, alone: dict[str, tuple[list[int], list[float]]]
    ) -> None:
        self.client = client
        self.alone = alone
        self.outcome = Outcome()

    async def run(self, requests: list[Request], at_once: int) -> None:
        """Keep `at_once` requests under way until all are answered or gone."""
        queue = list(enumerate(requests))[::-1]

        async def work() -> None:
            while queue:
                number, request = queue.pop()
                await self._send(f"soak-{number}", request)

        await asyncio.gather(*(work() for _ in range(at_once)))

    async def _send(self, rid: str, request: Request) -> None:
        self.outcome.counts["requests"] += 1
        self.outcome.counts[request.fate] += 1
        if (sent := self.outcome.counts["requests"]) % 250 == 0:
            print(f"{sent} requests sent, {len(self.outcome.problems)} problems", flush=True)
        try:
            if request.fate == "disconnect":
                await self._disconnect(rid, request)
            else:
                await self._answer(rid, request)
        except httpx.HTTPError as error:
            self.outcome.problems.append(f"{rid}: {type(error).__name__} {error}")

    async def _answer(self, rid: str, request: Request) -> None:
        sent = asyncio.create_task(self.client.post("/generate", json=request.body(rid=rid)))
        if request.fate == "abort":
            await asyncio.sleep(request.when)
            await self.client.post("/abort_request", json={"rid": rid})
        reply = await sent
        if reply.status_code != 200:
            self.outcome.problems.append(f"{rid}: {reply.status_code} {reply.text[:300]}")
            return
        answer = reply.json()
        meta = answer["meta_info"]
        reason = meta["finish_reason"]["type"]
        self.outcome.counts[f"finish_reason {reason}"] += 1
        self.outcome.counts["cached_tokens"] += meta["cached_tokens"]
        self.outcome.counts["prompt_tokens"] += meta["prompt_tokens"]
        if meta["completion_tokens"] != len(answer["output_ids"]):
            self.outcome.problems.append(f"{rid}: completion_tokens is wrong: {meta}")
        if reason == "abort" and request.fate != "abort":
            self.outcome.problems.append(f"{rid}: aborted by nobody: {meta}")
        self._compare(rid, request, answer["output_ids"], whole=reason != "abort")

    async def _disconnect(self, rid: str, request: Request) -> None:
        """Read some pieces of the stream, then be gone."""
        body = request.body(rid=rid, stream=True)
        tokens: list[int] = []
        pieces = 0
        async with self.client.stream("POST", "/generate", json=body) as reply:
            async for line in reply.aiter_lines():
                if pieces >= request.when or line == "data: [DONE]":
                    break
                if line.startswith("data: "):
                    pieces += 1
                    tokens = json.loads(line[6:]).get("output_ids", tokens)
        self._compare(rid, request, tokens, whole=False)

    def _compare(self, rid: str, request: Request, tokens: list[int], whole: bool) -> None:
        right, margins = self.alone[request.key]
        compared = len(right) if whole else min(len(tokens), len(right))
        if tokens[:compared] == right[:compared] and (not whole or len(tokens) == len(right)):
            self.outcome.counts["compared whole" if whole else "compared in part"] += 1
            return
        differs = next(
            (i for i, (a, b) in enumerate(zip(tokens, right, strict=False)) if a != b),
            min(len(tokens), len(right)),
        )
        if differs < len(margins) and margins[differs] < MARGIN:
            self.outcome.counts["differ where two logits are equal"] += 1
            return
        self.outcome.problems.append(
            f"{rid}: token {differs} differs; prompt of {len(request.prompt)}, got "
            f"{tokens[differs : differs + 4]} for {right[differs : differs + 4]}, "
            f"margin {margins[differs] if differs < len(margins) else None}"
        )


async def finish(client: httpx.AsyncClient, outcome: Outcome) -> dict[str, Any]:
    """The server falls idle by itself; then its pools hold the cache alone, then nothing."""
    deadline = time.monotonic() + 20
    while True:
        info = (await client.get("/server_info")).json()
        pools = _find(info, "memory_pools")
        busy = {n: p for n, p in pools.items() if p["held"] or p["protected"]}
        if not busy or time.monotonic() > deadline:
            break
        await asyncio.sleep(0.2)
    if busy:
        outcome.problems.append(f"idle, and slots are held: {busy}")
    reply = await client.post("/flush_cache")
    pools = _find((await client.get("/server_info")).json(), "memory_pools")
    if reply.status_code != 200 or any(p["available"] != p["total"] for p in pools.values()):
        outcome.problems.append(f"not empty after /flush_cache ({reply.status_code}): {pools}")
    if _find(info, "num_leaked_slots"):
        outcome.problems.append(f"{_find(info, 'num_leaked_slots')} slots leaked")
    if (await client.get("/health")).status_code != 200:
        outcome.problems.append("/health is not 200")
    return {
        name: _find(info, name)
        for name in ("num_retractions", "skipped_checkpoints", "num_leaked_slots", "cache")
    } | {"pools_after_flush": pools}


def _find(info: Any, name: str) -> Any:
    """The value of a key, wherever in the report it is."""
    if isinstance(info, dict):
        if name in info:
            return info[name]
        for value in info.values():
            if (found := _find(value, name)) is not None:
                return found
    if isinstance(info, list):
        for value in info:
            if (found := _find(value, name)) is not None:
                return found
    return None


def _flags(arguments: argparse.Namespace) -> list[str]:
    return [
        "--pp-size", str(arguments.pp_size),
        "--page-size", str(arguments.page_size),
        "--max-total-tokens", str(arguments.max_total_tokens),
        "--max-mamba-cache-size", str(arguments.max_mamba_cache_size),
        "--max-running-requests", str(arguments.max_running_requests),
        "--chunked-prefill-size", str(arguments.chunked_prefill_size),
        "--mamba-radix-cache-strategy", arguments.strategy,
        "--schedule-policy", arguments.schedule_policy,
        *(["--enable-mixed-chunk"] if arguments.mixed_chunk else []),
    ]  # fmt: skip


async def soak(arguments: argparse.Namespace, folder: Path) -> int:
    """Both servers one after the other; 0 when all is right."""
    requests = draw_requests(
        arguments.requests, arguments.vocab_size, arguments.max_total_tokens // 2, arguments.seed
    )
    started = time.monotonic()
    async with serving(
        arguments.model_path, folder / "alone.log", "--max-running-requests", "1",
        "--max-total-tokens", "2048", "--max-mamba-cache-size", "2", "--disable-radix-cache",
    ) as client:  # fmt: skip
        alone = await serve_alone(client, requests)
    print(f"{len(alone)} distinct requests served alone in {time.monotonic() - started:.0f} s")
    started = time.monotonic()
    async with serving(arguments.model_path, folder / "soak.log", *_flags(arguments)) as client:
        run = Soak(client, alone)
        await run.run(requests, arguments.at_once)
        report = await finish(client, run.outcome)
    seconds = time.monotonic() - started
    log = (folder / "soak.log").read_text()
    if "memory check failed" in log or "Traceback" in log:
        run.outcome.problems.append(f"the server's log shows an error:\n{log[-3000:]}")
    print(f"flags: {' '.join(_flags(arguments))}, {arguments.at_once} requests at once")
    print(f"seed {arguments.seed}, {seconds:.0f} s, memory checked after every step")
    for name, count in sorted(run.outcome.counts.items()):
        print(f"  {name}: {count}")
    for name, value in report.items():
        print(f"  {name}: {json.dumps(value)}")
    for problem in run.outcome.problems[:20]:
        print("PROBLEM", problem)
    print("FAILED" if run.outcome.problems else "PASSED", f"({len(run.outcome.problems)} problems)")
    return 1 if run.outcome.problems else 0


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--model-path", help="default: a tiny random hybrid made for this run")
    parser.add_argument("--vocab-size", type=int, default=256, help="prompts draw ids below it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at-once", type=int, default=12)
    parser.add_argument("--pp-size", type=int, default=2)
    parser.add_argument("--page-size", type=int, default=1)
    parser.add_argument("--max-total-tokens", type=int, default=640)
    parser.add_argument("--max-mamba-cache-size", type=int, default=12)
    parser.add_argument("--max-running-requests", type=int, default=5)
    parser.add_argument("--chunked-prefill-size", type=int, default=64)
    parser.add_argument("--strategy", default="auto")
    parser.add_argument("--schedule-policy", default="lpm")
    parser.add_argument("--mixed-chunk", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sgl-soak-") as name:
        folder = Path(name)
        if arguments.model_path is None:
            sys.path[:0] = [str(ROOT / "python"), str(ROOT / "test" / "srt")]
            from support.tiny_models import make_model

            arguments.model_path = str(make_model(folder / "model"))
        return asyncio.run(soak(arguments, folder))


if __name__ == "__main__":
    sys.exit(main())
