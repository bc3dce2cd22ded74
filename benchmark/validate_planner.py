"""The planner against this machine: predicted and measured time to first token, 1 to 4 stages.

    python benchmark/validate_planner.py [--rounds 5] [--out benchmark/results/planner_validation]

A random hybrid of about 120 M parameters, one thread a stage. Predictions come in two ways: from
the coefficients that the server with that many stages measured at its own start ("own profile"),
and from those of one stage alone, divided over the layers ("from pp 1"), which is what planning is
for. What requests and micro-batches cost outside the layers, and a hop from stage to stage, are
taken from the traces of pp 1 and pp 2 with static chunks.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import sys
import tempfile
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from models import write_model

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python"))

from sglang.bench_support import BenchServer, TracedChunk, bubble_fractions  # noqa: E402
from sglang.plan_pipeline.cli import with_model  # noqa: E402
from sglang.plan_pipeline.profile import Link, PipelineProfile, parse_profile  # noqa: E402
from sglang.plan_pipeline.report import seconds, table  # noqa: E402
from sglang.plan_pipeline.simulator import SimConfig, SimRequest, simulate  # noqa: E402

MODES = {"static": None, "dynamic": 0.75}


def start(arguments: argparse.Namespace, model: Path, folder: Path, pp: int, mode: str) -> Any:
    """A server; dynamic ones report their profile."""
    flags = ["--pp-size", str(pp), "--load-format", "dummy", "--device", "cpu"]
    flags += ["--chunked-prefill-size", str(arguments.chunk), "--disable-radix-cache"]
    # Both servers would otherwise take half of the free memory that both see.
    flags += ["--max-total-tokens", str(max(arguments.prompts) + 4 * arguments.chunk)]
    flags += ["--random-seed", "1"] + (["--enable-dynamic-chunking"] if mode == "dynamic" else [])
    environment = {"OMP_NUM_THREADS": "1", "SGLANG_DYNAMIC_CHUNKING_SMOOTH_FACTOR": "0.75"}
    return BenchServer(folder / f"{pp}-{mode}", str(model), flags, environment)


def measure(arguments: argparse.Namespace, model: Path, folder: Path) -> dict[str, Any]:
    """Times, traces and profiles, one number of stages after the other; both modes alternate."""
    rng = random.Random(0)
    prompts = {n: [rng.randrange(3, 2000) for _ in range(n)] for n in arguments.prompts}
    found: dict[str, Any] = {}
    for pp in arguments.pp_sizes:
        servers = {}
        try:
            for mode in MODES:
                servers[mode] = start(arguments, model, folder, pp, mode)
                servers[mode].wait_ready()
                servers[mode].generate("warm", prompts[min(prompts)])
            info = servers["dynamic"].server_info()  # before anything is fitted again
            found[str(pp)] = {**run(arguments.rounds, servers, prompts), "info": info}
        finally:
            for server in servers.values():
                server.close()
    return found


def run(rounds: int, servers: dict[str, Any], prompts: dict[int, list[int]]) -> dict[str, Any]:
    """One entry a mode and prompt length: times to first token and one trace a round."""
    found: dict[str, Any] = {
        mode: {n: {"ttft": [], "chunks": []} for n in prompts} for mode in servers
    }
    for turn in range(rounds):
        for n, ids in prompts.items():
            for mode in list(servers)[:: 1 if turn % 2 == 0 else -1]:
                ttft = servers[mode].generate(f"{n}-{turn}", ids)
                found[mode][n]["ttft"].append(ttft)
                chunks = servers[mode].traced([f"{n}-{turn}"])[f"{n}-{turn}"]
                found[mode][n]["chunks"].append(chunks)
    return found


def calibrate(found: dict[str, Any]) -> dict[str, float]:
    """Costs outside the layers, from static runs: of a request, of a micro-batch, of a hop."""
    request, step, hop = [], [], [0.0]
    for entry in found["1"]["static"].values():
        for ttft, chunks in zip(entry["ttft"], entry["chunks"], strict=True):
            request.append(ttft - (chunks[-1].ended_s[-1] - chunks[0].started_s[0]))
            step += [b.started_s[0] - a.ended_s[0] for a, b in pairwise(chunks)]
    if "2" in found:
        # The first chunk meets an idle stage 1: what lies between is the hop alone.
        runs = [run for entry in found["2"]["static"].values() for run in entry["chunks"]]
        hop = [chunks[0].started_s[1] - chunks[0].ended_s[0] for chunks in runs]
    return {
        "request_overhead_s": median(request),
        "step_overhead_s": median(step),
        "hop_s": median(hop),
    }


def predict(
    profile: PipelineProfile, costs: dict[str, float], arguments: argparse.Namespace,
    pp: int, mode: str, num_tokens: int,
) -> Any:  # fmt: skip
    """Simulated time to first token."""
    config = SimConfig(
        profile.divided(pp), arguments.chunk, MODES[mode], has_states=True,
        link=Link(costs["hop_s"]), cores=os.cpu_count(),
        step_overhead_s=costs["step_overhead_s"], request_overhead_s=costs["request_overhead_s"],
    )  # fmt: skip
    return simulate(config, [SimRequest(num_tokens)])


def compare(
    arguments: argparse.Namespace, model: Path, found: dict[str, Any]
) -> list[dict[str, Any]]:
    """One row a number of stages, mode and length."""
    costs = calibrate(found)
    one = with_model(parse_profile(found["1"]["info"]), str(model), 4)
    rows = []
    for pp in arguments.pp_sizes:
        own = replace(parse_profile(found[str(pp)]["info"]), layers=one.layers)
        for mode in MODES:
            for n in arguments.prompts:
                entry = found[str(pp)][mode][n]
                results = {
                    "own": predict(own, costs, arguments, pp, mode, n),
                    "pp 1": predict(one, costs, arguments, pp, mode, n),
                }
                bubbles = [sum(f) / len(f) for f in map(bubble_fractions, entry["chunks"])]
                rows.append(
                    {
                        "pp": pp, "mode": mode, "tokens": n, "ttft": median(entry["ttft"]),
                        "all": entry["ttft"], "bubble": median(bubbles), "costs": costs,
                        "micro_batches": len(entry["chunks"][0]),
                        "same_chunks": _same(entry["chunks"][0], results["own"]),
                        **{name: r.time_to_first_token_s[0] for name, r in results.items()},
                        "own_bubble": results["own"].bubble_fraction,
                    }
                )  # fmt: skip
    return rows


def _same(chunks: list[TracedChunk], result: Any) -> bool:
    planned = [(a, b) for chunk in result.chunks for _, a, b in chunk.rows]
    return planned == [(chunk.start, chunk.end) for chunk in chunks]


def text_of(rows: list[dict[str, Any]], found: dict[str, Any], command: str) -> str:
    """The table with its errors, the largest last; and what start-up profiling cost."""
    costs = rows[0]["costs"]
    lines = [
        f"machine: {platform.machine()}, {os.cpu_count()} cores; one thread a stage",
        f"command: {command}",
        f"outside the layers: {costs['request_overhead_s'] * 1e3:.1f} ms a request, "
        f"{costs['step_overhead_s'] * 1e3:.2f} ms a micro-batch, "
        f"{costs['hop_s'] * 1e3:.2f} ms a hop",
        "",
    ]
    cells = [["pp", "chunks", "prompt", "measured", "spread", "own profile", "error", "from pp 1",
              "error", "bubble", "predicted", "same chunks"]]  # fmt: skip
    for row in rows:
        cells.append(
            [
                str(row["pp"]), row["mode"], str(row["tokens"]), seconds(row["ttft"]),
                f"{(max(row['all']) - min(row['all'])) / row['ttft']:.0%}",
                seconds(row["own"]), f"{row['own'] / row['ttft'] - 1:+.1%}",
                seconds(row["pp 1"]), f"{row['pp 1'] / row['ttft'] - 1:+.1%}",
                f"{row['bubble']:.1%}", f"{row['own_bubble']:.1%}",
                "yes" if row["same_chunks"] else "no",
            ]
        )  # fmt: skip
    lines.append(table(cells))
    for name in ("own", "pp 1"):
        errors = [abs(row[name] / row["ttft"] - 1) for row in rows]
        lines.append(
            f"error from {name}: median {median(errors):.1%}, largest {max(errors):.1%}, within "
            f"10 %: {sum(e <= 0.1 for e in errors)} of {len(errors)}"
        )
    for pp, entry in found.items():
        report = entry["info"]["dynamic_chunking"]
        if report["enabled"]:
            samples = report["stages"][0]["num_samples"]
            lines.append(
                f"profiling at pp {pp}: {report['num_profile_requests']} requests, {samples} "
                f"samples a stage, {report['profile_seconds']:.1f} s, "
                f"fit error {report['mape']:.1%}"
            )
    return "\n".join(lines)


def main() -> None:
    """Measure, compare, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompts", type=int, nargs="+", default=[2048, 4096, 8192])
    parser.add_argument("--pp-sizes", type=int, nargs="+", default=[1, 2, 3, 4])
    parser.add_argument("--chunk", type=int, default=512)
    parser.add_argument("--out", type=Path, help="name of a .txt and a .json file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        model = write_model(Path(name) / "hybrid-120m")
        found = measure(arguments, model, Path(name))
        rows = compare(arguments, model, found)
    command = "python benchmark/validate_planner.py " + " ".join(sys.argv[1:])
    text = text_of(rows, found, command)
    print(text)
    if arguments.out:
        arguments.out.with_suffix(".txt").write_text(text + "\n")
        profiles = {pp: entry["info"]["dynamic_chunking"] for pp, entry in found.items()}
        body = {"command": command, "rows": rows, "profiles": profiles}
        arguments.out.with_suffix(".json").write_text(json.dumps(body, indent=1) + "\n")


if __name__ == "__main__":
    main()
