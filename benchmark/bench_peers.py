"""This runtime and its peers on one CPU: prefill, decoding, start-up, memory; and the limits.

    python benchmark/bench_peers.py [--peers ours transformers] [--rounds 3]
    python benchmark/bench_peers.py --peers ours ours-bf16 vllm --python vllm=ENV/bin/python

The same weights (a random hybrid of about 116 M parameters, written by `transformers`), the same
prompts, the same number of threads. All peers stay loaded; one at a time works, in turns, and the
median of the rounds counts. Decoding is the difference of two lengths, so that prefill drops out.
The limits are measured in the same run: a large fp32 matrix product, and reading memory.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import IO, Any, cast

import psutil
import torch
from models import HYBRID_120M, write_model

ROOT = Path(__file__).resolve().parents[1]
OUR_FLAGS = {"ours": {}, "ours-bf16": {"dtype": "bfloat16"}}
SHORT, LONG = 8, 40  # new tokens of the two decoding runs


class Peer:
    """A worker process that generates."""

    def __init__(self, name: str, python: str, folder: Path, threads: int) -> None:
        self.name = name
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": str(threads),
            "OUR_FLAGS": json.dumps(OUR_FLAGS.get(name, {})),
            "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}",
            "VLLM_CPU_KVCACHE_SPACE": "2",
            "VLLM_LOGGING_LEVEL": "ERROR",
        }
        if name in OUR_FLAGS:
            environment["PYTHONPATH"] = str(ROOT / "python")
        worker = str(ROOT / "benchmark/peers/worker.py")
        started = time.perf_counter()
        self._process = subprocess.Popen(
            [python, worker, name.partition("-")[0], str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            text=True,
        )
        assert self._read() == {"ready": True}
        self.start_seconds = time.perf_counter() - started

    def run(self, prompts: list[list[int]], new_tokens: int) -> tuple[float, list[list[int]]]:
        """Seconds, and the tokens."""
        task = {"prompts": prompts, "new_tokens": new_tokens}
        cast(IO[str], self._process.stdin).write(json.dumps(task) + "\n")
        cast(IO[str], self._process.stdin).flush()
        answer = self._read()
        return answer["seconds"], answer["tokens"]

    def peak_mib(self) -> int:
        """Largest memory of the process and its children."""
        process = psutil.Process(self._process.pid)
        found = 0
        for each in (process, *process.children(recursive=True)):
            status = Path(f"/proc/{each.pid}/status").read_text()
            (peak,) = [line.split()[1] for line in status.splitlines() if "VmHWM" in line]
            found += int(peak) // 1024
        return found

    def close(self) -> None:
        """End it."""
        cast(IO[str], self._process.stdin).close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def _read(self) -> Any:
        line = cast(IO[str], self._process.stdout).readline()
        if not line:
            raise RuntimeError(f"{self.name} ended with status {self._process.wait()}")
        return json.loads(line)


def make_checkpoint(folder: Path) -> Path:
    """Random weights in the format that all peers read."""
    from transformers.models.qwen3_5 import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    torch.manual_seed(0)
    model = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**HYBRID_120M))
    model.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    write_model(folder, config)
    return folder


def limits(threads: int) -> dict[str, float]:
    """GFLOP/s of a large matrix product, and GB/s of reading memory."""
    torch.set_num_threads(threads)
    a, b, out = torch.randn(2048, 2048), torch.randn(2048, 2048), torch.empty(2048, 2048)
    wide = torch.randn(2**26)

    def best(action: Any) -> float:
        times = []
        for _ in range(5):
            started = time.perf_counter()
            action()
            times.append(time.perf_counter() - started)
        return min(times)

    return {
        "gflops": 2 * 2048**3 / best(lambda: torch.mm(a, b, out=out)) / 1e9,
        "gbytes": wide.numel() * 4 / best(lambda: wide.sum()) / 1e9,
    }


def measure(peers: list[Peer], arguments: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """Tokens a second: {row: {peer: [one a round]}}."""
    rng = random.Random(0)

    def ids(count: int) -> list[int]:
        return [rng.randrange(3, 31000) for _ in range(count)]

    prompts = {n: ids(n) for n in arguments.prefill}
    starts = [ids(16) for _ in range(max(arguments.streams))]
    found: dict[str, dict[str, list[float]]] = {}
    for number in range(arguments.rounds + 1):  # the first round warms up
        for n, prompt in prompts.items():
            for peer in peers:
                seconds, _ = peer.run([prompt], 1)
                if number:
                    found.setdefault(f"prefill {n}", {}).setdefault(peer.name, []).append(
                        n / seconds
                    )
        for streams in arguments.streams:
            for peer in peers:
                short, _ = peer.run(starts[:streams], SHORT)
                long, _ = peer.run(starts[:streams], LONG)
                if number:
                    rate = streams * (LONG - SHORT) / (long - short)
                    row = found.setdefault(f"decode {streams}", {})
                    row.setdefault(peer.name, []).append(rate)
    return found


def model_costs() -> tuple[float, float]:
    """Operations of a prompt token, and bytes of fp32 weights that a decode step reads."""
    sys.path.insert(0, str(ROOT / "python"))
    from sglang.srt.model_executor.layer_cost import estimate_layer_costs
    from sglang.srt.models.config import ModelConfig

    with tempfile.TemporaryDirectory() as name:
        costs = estimate_layer_costs(ModelConfig.from_path(str(write_model(Path(name) / "m"))))
    return sum(costs.layers), 2.0 * (sum(costs.layers) + costs.head)


def report(
    arguments: argparse.Namespace,
    peers: list[Peer],
    found: dict[str, dict[str, list[float]]],
    limit: dict[str, float],
) -> str:
    """The table, with ratios to the best peer and to the limit."""
    operations, weight_bytes = model_costs()
    names = [peer.name for peer in peers]
    lines = [
        f"machine: {platform.machine()}, {os.cpu_count()} cores; {arguments.threads} thread(s)",
        f"command: python benchmark/bench_peers.py {' '.join(sys.argv[1:])}",
        f"limits: fp32 matrix product {limit['gflops']:.0f} GFLOP/s, reading {limit['gbytes']:.1f} "
        "GB/s",
        "tokens a second, medians of "
        f"{arguments.rounds} rounds in turns (lowest to highest of ours in brackets)",
        " | ".join(["row".ljust(13), *(name.rjust(12) for name in names), "ours / best peer",
                    "ours / limit"]),
    ]  # fmt: skip
    for row, rates in found.items():
        middle = {name: median(rates[name]) for name in names}
        others = [middle[name] for name in names if name not in OUR_FLAGS]
        kind, count = row.split()
        most = (
            limit["gflops"] * 1e9 / operations
            if kind == "prefill"
            else min(
                limit["gbytes"] * 1e9 / weight_bytes * int(count),
                limit["gflops"] * 1e9 / (weight_bytes / 2),
            )
        )
        ratio = f"{middle['ours'] / max(others):.2f}" if others else "-"
        spread = f"[{min(rates['ours']):.0f}, {max(rates['ours']):.0f}]"
        lines.append(
            " | ".join([row.ljust(13), *(f"{middle[name]:12.0f}" for name in names),
                        ratio.rjust(16), f"{middle['ours'] / most:.2f} {spread}"])
        )  # fmt: skip
    for title, values in (
        ("start, s", {peer.name: f"{peer.start_seconds:.1f}" for peer in peers}),
        ("peak, MiB", {peer.name: str(peer.peak_mib()) for peer in peers}),
    ):
        lines.append(" | ".join([title.ljust(13), *(values[name].rjust(12) for name in names)]))
    return "\n".join(lines)


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--peers", nargs="+", default=["ours", "ours-bf16", "transformers"])
    add("--python", nargs="*", default=[], help="name=interpreter of a peer in its own environment")
    add("--threads", type=int, default=os.cpu_count() or 1)
    add("--prefill", type=int, nargs="+", default=[512, 2048, 8192])
    add("--streams", type=int, nargs="+", default=[1, 8, 32])
    add("--rounds", type=int, default=3)
    add("--out", type=Path)
    arguments = parser.parse_args()
    interpreters = dict(entry.split("=", 1) for entry in arguments.python)
    with tempfile.TemporaryDirectory() as name:
        folder = make_checkpoint(Path(name) / "hybrid-120m")
        limit = limits(arguments.threads)
        peers: list[Peer] = []
        try:
            for peer in arguments.peers:
                python = interpreters.get(peer, sys.executable)
                peers.append(Peer(peer, python, folder, arguments.threads))
            found = measure(peers, arguments)
            text = report(arguments, peers, found, limit)
        finally:
            for running in peers:
                running.close()
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
