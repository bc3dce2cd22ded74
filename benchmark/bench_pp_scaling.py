"""Strong scaling of the pipeline: one stage against two, one thread a stage, alternating.

    python benchmark/bench_pp_scaling.py [--rounds 3] [--prompt 8192] [--out benchmark/results/...]

Prefill of one long prompt, and decoding of 16 streams; a random hybrid of about 120 M parameters.
The efficiency is time(one stage) / (2 * time(two stages)): 1.00 is perfect.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

from models import write_model

ROOT = Path(__file__).resolve().parents[1]


class Server:
    """One running server."""

    def __init__(
        self, folder: Path, pp_size: int, chunk: int, extra: list[str], partition: str = ""
    ) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT / "python"),
            "SGLANG_PP_LAYER_PARTITION": partition,
        }
        flags = f"--pp-size {pp_size} --load-format dummy --device cpu --random-seed 1"
        command = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(folder)]
        command += [*flags.split(), "--port", str(self.port), "--disable-radix-cache"]
        # Pools are sized by free memory, which both servers would see: more than there is.
        command += ["--max-total-tokens", "32768", "--max-running-requests", "32"]
        command += ["--chunked-prefill-size", str(chunk), *extra]
        self.process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)

    def wait(self) -> None:
        """Wait until it answers."""
        for _ in range(600):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5).read()
                return
            except OSError:
                time.sleep(0.2)
        raise TimeoutError("the server did not come up")

    def generate(self, ids: list[int], max_new_tokens: int) -> float:
        """Seconds of one request."""
        body = {
            "input_ids": ids,
            "sampling_params": {
                "max_new_tokens": max_new_tokens,
                "temperature": 0,
                "ignore_eos": True,
            },
        }
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/generate",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        started = time.perf_counter()
        urllib.request.urlopen(request, timeout=600).read()
        return time.perf_counter() - started

    def decode(self, streams: int, short: int, long: int) -> float:
        """Seconds a token step of `streams` requests at once.

        Two lengths are run and their difference counts: prefill drops out.
        """
        rng = random.Random(streams)
        prompts = [[rng.randrange(3, 2000) for _ in range(16)] for _ in range(streams)]

        def run(num_tokens: int) -> float:
            with ThreadPoolExecutor(streams) as pool:
                started = time.perf_counter()
                list(pool.map(lambda ids: self.generate(ids, num_tokens), prompts))
                return time.perf_counter() - started

        first = run(short)
        return (run(long) - first) / (long - short)

    def close(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.wait(30)


def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, dict[str, list[float]]]:
    """Alternate the two servers; both stay loaded, one at a time works."""
    rng = random.Random(0)
    ids = [rng.randrange(3, 2000) for _ in range(arguments.prompt)]
    partitions = {1: "", 2: arguments.partition or ""}
    servers = {
        pp: Server(folder, pp, arguments.chunk, arguments.extra, partition)
        for pp, partition in partitions.items()
    }
    times: dict[str, dict[str, list[float]]] = {"prefill": {}, "decode": {}}
    try:
        for server in servers.values():
            server.wait()
            server.generate(ids[:1024], 4)
        for _ in range(arguments.rounds):
            for pp, server in servers.items():
                times["prefill"].setdefault(str(pp), []).append(server.generate(ids, 1))
                times["decode"].setdefault(str(pp), []).append(server.decode(16, 16, 80))
    finally:
        for server in servers.values():
            server.close()
    return times


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompt", type=int, default=8192)
    parser.add_argument("--chunk", type=int, default=512)
    parser.add_argument("--partition", help="layers of the two stages, e.g. 7,5")
    parser.add_argument("--out", type=Path)
    parser.add_argument("extra", nargs="*", help="more server flags, after --")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        times = measure(arguments, write_model(Path(name) / "hybrid-120m"))
    lines = [
        f"machine: {platform.machine()}, {os.cpu_count()} cores; one thread a stage",
        f"command: python benchmark/bench_pp_scaling.py --rounds {arguments.rounds} "
        f"--prompt {arguments.prompt} --chunk {arguments.chunk}"
        f"{f' --partition {arguments.partition}' if arguments.partition else ''} "
        f"{' '.join(arguments.extra)}",
    ]
    for what, unit in (
        ("prefill", f"s for {arguments.prompt} tokens"),
        ("decode", "s a step of 16"),
    ):
        one, two = (median(times[what][pp]) for pp in ("1", "2"))
        lines.append(
            f"{what}: one stage {one:.3f}, two stages {two:.3f} {unit}; "
            f"efficiency {one / (2 * two):.2f} (all: {times[what]})"
        )
    print("\n".join(lines))
    if arguments.out:
        arguments.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
