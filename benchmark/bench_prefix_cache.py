"""Time to first token of a long prompt, cold and warm, on one server, side by side.

    PYTHONPATH=python python benchmark/bench_prefix_cache.py [--prompt 4000] [--rounds 7]

Each round draws a new prompt and sends it three times, one after another: cold (nothing of it is
cached), warm (the same prompt), and as the next turn of a chat (prompt, reply and 32 new tokens).
The rounds alternate, so that whatever else the machine does hits all three alike. The replies to
the cold and the warm prompt must be equal, or the run fails.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Reply:
    """One streamed answer."""

    ttft_s: float
    token_ids: list[int]
    cached_tokens: int


def start_server(arguments: argparse.Namespace) -> tuple[subprocess.Popen[bytes], str]:
    """A server process and its address; waits until it is ready."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "sglang.launch_server", "--model-path", arguments.model_path,
               "--device", "cpu", "--pp-size", str(arguments.pp_size), "--port", str(port),
               "--chunked-prefill-size", str(arguments.chunk)]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "python")}
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    url = f"http://127.0.0.1:{port}"
    for _ in range(600):
        try:
            if httpx.get(f"{url}/health").status_code == 200:
                return process, url
        except httpx.TransportError:
            pass
        if process.poll() is not None:
            break
        time.sleep(0.2)
    process.kill()
    raise RuntimeError(f"the server did not come up: {' '.join(command)}")


def ask(client: httpx.Client, ids: list[int], max_new_tokens: int) -> Reply:
    """Send one prompt; the time until its first token is there."""
    params = {"temperature": 0, "max_new_tokens": max_new_tokens, "ignore_eos": True}
    body = {"input_ids": ids, "sampling_params": params, "stream": True}
    started = time.perf_counter()
    first = 0.0
    answer: dict[str, Any] = {}
    with client.stream("POST", "/generate", json=body) as reply:
        reply.raise_for_status()
        for line in reply.iter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            answer = json.loads(line[6:])
            if not first and answer["output_ids"]:
                first = time.perf_counter() - started
    return Reply(first, answer["output_ids"], answer["meta_info"]["cached_tokens"])


def one_round(
    client: httpx.Client, rng: random.Random, arguments: argparse.Namespace
) -> dict[str, Reply]:
    """A new prompt cold, again, and as the next turn."""
    prompt = [rng.randrange(arguments.vocab_size) for _ in range(arguments.prompt)]
    cold = ask(client, prompt, arguments.reply)
    warm = ask(client, prompt, arguments.reply)
    if cold.token_ids != warm.token_ids:
        raise RuntimeError("the warm prompt was answered differently from the cold one")
    if cold.cached_tokens or not warm.cached_tokens:
        raise RuntimeError(f"cached_tokens: cold {cold.cached_tokens}, warm {warm.cached_tokens}")
    news = [rng.randrange(arguments.vocab_size) for _ in range(32)]
    turn = ask(client, prompt + cold.token_ids + news, arguments.reply)
    return {"cold": cold, "warm": warm, "next turn": turn}


def summary(rounds: list[dict[str, Reply]], arguments: argparse.Namespace) -> dict[str, Any]:
    """Medians and the ratio to a cold prompt."""
    cold = median(r["cold"].ttft_s for r in rounds)
    rows = {}
    for kind in rounds[0]:
        times = [r[kind].ttft_s for r in rounds]
        rows[kind] = {
            "ttft_ms_median": round(1000 * median(times), 2),
            "ttft_ms": [round(1000 * t, 2) for t in times],
            "cached_tokens": rounds[-1][kind].cached_tokens,
            "cold_to_this": round(cold / median(times), 2),
        }
    return {
        "command": " ".join(["python benchmark/bench_prefix_cache.py", *sys.argv[1:]]),
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}",
        "load_average": os.getloadavg()[0],
        "model": Path(arguments.model_path).name,
        "pp_size": arguments.pp_size,
        "prompt_tokens": arguments.prompt,
        "chunked_prefill_size": arguments.chunk,
        "rounds": rows,
    }


def main() -> None:
    """Run and print; `--out` also writes JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model-path", default="tiny-hybrid")
    parser.add_argument("--vocab-size", type=int, default=3000, help="prompts draw ids below it")
    parser.add_argument("--pp-size", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=4000)
    parser.add_argument("--reply", type=int, default=16)
    parser.add_argument("--chunk", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    process, url = start_server(arguments)
    try:
        rng = random.Random(0)
        with httpx.Client(base_url=url, timeout=300) as client:
            one_round(client, rng, arguments)  # the first forward passes are cold in another sense
            rounds = [one_round(client, rng, arguments) for _ in range(arguments.rounds)]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)
    report = summary(rounds, arguments)
    print(f"{report['machine']}, load {report['load_average']:.1f}; {report['command']}")
    print(f"{'':10} {'median TTFT':>12} {'cold / this':>12} {'cached_tokens':>14}")
    for kind, row in report["rounds"].items():
        print(f"{kind:10} {row['ttft_ms_median']:>9} ms {row['cold_to_this']:>12} "
              f"{row['cached_tokens']:>14}")  # fmt: skip
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
