"""`python -m sglang.bench_pipeline`: static against dynamic chunks, side by side.

One server for each way to chunk, all with the same weights and all loaded at once; one at a time
works. Each round asks every server once for each prompt length, in turning order, so that a drift
of the machine meets all of them alike. Times of the stages come from `--pp-trace`.

    python -m sglang.bench_pipeline --model-path tiny-hybrid --pp-size 2 --prompt-lens 4096,8192
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shlex
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from sglang.bench_support import BenchError, BenchServer, TracedChunk, bubble_fractions
from sglang.plan_pipeline.profile import ProfileError, parse_profile
from sglang.plan_pipeline.report import seconds, table
from sglang.plan_pipeline.svg import Chart, Series, number, page
from sglang.srt.managers.chunk_sizer import LatencyModel


@dataclass(frozen=True)
class Setting:
    """One way to chunk; smooth None: static."""

    chunk_size: int
    smooth: float | None = None

    @property
    def name(self) -> str:
        """As in the table."""
        kind = "static" if self.smooth is None else f"dynamic {self.smooth:g}"
        return f"{kind} {self.chunk_size}"


@dataclass(frozen=True)
class Sample:
    """One request: seconds to the first token as the client saw it, and its micro-batches."""

    prompt_len: int
    ttft_s: float
    chunks: list[TracedChunk]


@dataclass
class Measured:
    """Everything measured of one setting."""

    setting: Setting
    info: dict[str, Any] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)

    def of_length(self, prompt_len: int) -> list[Sample]:
        """Samples of one prompt length, in order."""
        return [sample for sample in self.samples if sample.prompt_len == prompt_len]

    def ttft(self, prompt_len: int) -> float:
        """Median time to first token."""
        return median(sample.ttft_s for sample in self.of_length(prompt_len))

    def bubble(self, prompt_len: int) -> float:
        """Median over the rounds of the mean idle share of the stages."""
        means = []
        for sample in self.of_length(prompt_len):
            fractions = bubble_fractions(sample.chunks)
            means.append(sum(fractions) / len(fractions))
        return median(means)


def build_parser() -> argparse.ArgumentParser:
    """All flags; what follows `--` goes to the servers."""
    parser = argparse.ArgumentParser(
        prog="python -m sglang.bench_pipeline", description=__doc__, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    add("--model-path", default="tiny-hybrid", help="folder, hub name or embedded model")
    add("--load-format", default="auto", help="dummy: random weights, a config is enough")
    add("--pp-size", type=int, default=2)
    add("--prompt-lens", default="2048,8192", help="tokens of the prompts")
    add("--chunk-sizes", default="512", help="static sizes to compare")
    add("--dynamic-chunk-sizes", help="sizes of a first chunk (default: the first of the static)")
    add("--smooth-factors", default="0.75", help="of dynamic chunks, each in (0, 1]")
    add("--rounds", type=int, default=5)
    add("--threads", type=int, default=1, help="threads of a stage (OMP_NUM_THREADS)")
    add("--json", type=Path, help="write everything measured to this file")
    add("--svg", type=Path, help="write charts to this file")
    add("--text", type=Path, help="write the printed report to this file")
    add("server_flags", nargs="*", help="more flags of the servers, after --")
    return parser


def settings_of(arguments: argparse.Namespace) -> list[Setting]:
    """What to compare. Raises BenchError on lists that make no sense."""
    static = [Setting(size) for size in _ints(arguments.chunk_sizes, "--chunk-sizes")]
    bases = [static[0].chunk_size]
    if arguments.dynamic_chunk_sizes:
        bases = _ints(arguments.dynamic_chunk_sizes, "--dynamic-chunk-sizes")
    try:
        factors = [float(part) for part in arguments.smooth_factors.split(",")]
    except ValueError:
        factors = []
    if not factors or not all(0 < factor <= 1 for factor in factors):
        raise BenchError(f"--smooth-factors must be in (0, 1], got {arguments.smooth_factors!r}")
    return static + [Setting(base, factor) for base in bases for factor in factors]


def _ints(text: str, flag: str) -> list[int]:
    try:
        values = [int(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not values or min(values) < 1:
        raise BenchError(f"{flag} must be positive numbers such as 512,1024, got {text!r}")
    return values


def measure(arguments: argparse.Namespace, folder: Path) -> list[Measured]:
    """Start the servers, warm them up, alternate, read the traces."""
    lengths = _ints(arguments.prompt_lens, "--prompt-lens")
    found = [Measured(setting) for setting in settings_of(arguments)]
    with ExitStack() as stack:
        servers = []
        for i, one in enumerate(found):
            # One after another: profiling must not be disturbed by a neighbour that loads.
            server = start(arguments, one.setting, folder / str(i))
            stack.callback(server.close)
            server.wait_ready()
            servers.append(server)
        rng = random.Random(0)
        vocab_size = _vocab_size(arguments.model_path)
        prompts = {n: [rng.randrange(vocab_size) for _ in range(n)] for n in lengths}
        for one, server in zip(found, servers, strict=True):
            one.info = server.server_info()
            server.generate("warm-up", prompts[min(lengths)])
        order = list(zip(found, servers, strict=True))
        for turn in range(arguments.rounds):
            for n in lengths:
                for one, server in order if turn % 2 == 0 else order[::-1]:
                    rid = f"{n}-{turn}"
                    ttft = server.generate(rid, prompts[n])
                    one.samples.append(Sample(n, ttft, server.traced([rid])[rid]))
    return found


def start(arguments: argparse.Namespace, setting: Setting, folder: Path) -> BenchServer:
    """A server with one way to chunk; no prefix cache, or only the first round would compute."""
    flags = ["--pp-size", str(arguments.pp_size), "--load-format", arguments.load_format]
    flags += ["--chunked-prefill-size", str(setting.chunk_size), "--disable-radix-cache"]
    flags += ["--random-seed", "1"]
    if not any(flag.startswith("--max-total-tokens") for flag in arguments.server_flags):
        # By itself each server would take half of the free memory, which all of them see.
        flags += ["--max-total-tokens", str(pool_tokens(arguments, setting))]
    flags += arguments.server_flags
    environment = {"OMP_NUM_THREADS": str(arguments.threads)}
    if setting.smooth is not None:
        flags.append("--enable-dynamic-chunking")
        environment["SGLANG_DYNAMIC_CHUNKING_SMOOTH_FACTOR"] = str(setting.smooth)
    return BenchServer(folder, arguments.model_path, flags, environment)


def pool_tokens(arguments: argparse.Namespace, setting: Setting) -> int:
    """KV slots that a server needs: the longest prompt, and what profiling borrows beside it."""
    lengths = _ints(arguments.prompt_lens, "--prompt-lens")
    return max(lengths) + 4 * setting.chunk_size


def _vocab_size(model_path: str) -> int:
    from sglang.srt.models.config import ModelConfig

    return ModelConfig.from_path(model_path).vocab_size


def stage_models(found: Sequence[Measured]) -> tuple[LatencyModel, ...]:
    """The latency models of the first server that has some; () when profiling failed on all."""
    for one in found:
        try:
            return parse_profile(one.info).stages
        except ProfileError:
            continue
    return ()


def predicted(models: Sequence[LatencyModel], chunk: TracedChunk) -> float:
    """Seconds on the slowest stage that the models give."""
    return max(model.seconds(chunk.start, chunk.num_tokens) for model in models)


# -- report --------------------------------------------------------------------------------------


def report_text(found: Sequence[Measured], lengths: Sequence[int]) -> str:
    """The table, the chunk sequences, and how dynamic chunking came up."""
    models = stage_models(found)
    rows = [
        ["prompt", "chunks", "TTFT", "fastest", "slowest", "to best static", "bubble",
         "micro-batches", "prediction error"],
    ]  # fmt: skip
    for n in lengths:
        static = min(one.ttft(n) for one in found if one.setting.smooth is None)
        for one in found:
            times = [sample.ttft_s for sample in one.of_length(n)]
            chunks = one.of_length(n)[0].chunks
            rows.append(
                [
                    number(n),
                    one.setting.name,
                    seconds(one.ttft(n)),
                    seconds(min(times)),
                    seconds(max(times)),
                    f"{one.ttft(n) / static - 1:+.1%}",
                    f"{one.bubble(n):.1%}",
                    str(len(chunks)),
                    f"{_error(models, one.of_length(n)):.1%}" if models else "no model",
                ]
            )
    parts = [table(rows), ""]
    parts += [
        f"{one.setting.name}, {number(n)}: {_sequence(one.of_length(n)[0].chunks)}"
        for n in lengths
        for one in found
    ]
    return "\n".join([*parts, "", *_profiling(found)])


def _error(models: Sequence[LatencyModel], samples: Sequence[Sample]) -> float:
    """Median of |predicted / measured - 1| over all chunks."""
    chunks = [chunk for sample in samples for chunk in sample.chunks]
    return median(abs(predicted(models, chunk) / chunk.seconds - 1) for chunk in chunks)


def _sequence(chunks: Sequence[TracedChunk]) -> str:
    """Chunk lengths, repeated ones as 3x512."""
    runs: list[list[int]] = []
    for chunk in chunks:
        if runs and runs[-1][1] == chunk.num_tokens:
            runs[-1][0] += 1
        else:
            runs.append([1, chunk.num_tokens])
    return " ".join(str(size) if count == 1 else f"{count}x{size}" for count, size in runs)


def _profiling(found: Sequence[Measured]) -> list[str]:
    lines = []
    for one in found:
        if one.setting.smooth is None:
            continue
        report = one.info.get("dynamic_chunking", {})
        if not report.get("enabled"):
            lines.append(f"{one.setting.name}: RAN WITH STATIC CHUNKS: {report.get('reason')}")
            continue
        samples = [stage["num_samples"] for stage in report["stages"]]
        lines.append(
            f"{one.setting.name}: profiled with {report['num_profile_requests']} requests "
            f"({samples[0]} samples a stage) in {report['profile_seconds']:.1f} s, "
            f"fit error {report['mape']:.1%}"
        )
    return lines


def report_json(found: Sequence[Measured], command: str) -> dict[str, Any]:
    """Everything measured, with predicted times, as plain values."""
    models = stage_models(found)
    return {
        "command": command,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "settings": [
            {
                "name": one.setting.name,
                **asdict(one.setting),
                "dynamic_chunking": one.info.get("dynamic_chunking"),
                "layer_partition": one.info.get("layer_partition"),
                "samples": [
                    {
                        "prompt_len": sample.prompt_len,
                        "ttft_s": sample.ttft_s,
                        "bubble_fractions": bubble_fractions(sample.chunks),
                        "chunks": [
                            {
                                "start": chunk.start,
                                "end": chunk.end,
                                "stage_seconds": chunk.stage_seconds,
                                "predicted_s": predicted(models, chunk) if models else None,
                            }
                            for chunk in sample.chunks
                        ],
                    }
                    for sample in one.samples
                ],
            }
            for one in found
        ],
    }


def report_svg(found: Sequence[Measured], lengths: Sequence[int]) -> str:
    """Chunk lengths and times along the longest prompt; time to first token and bubbles."""
    models, longest = stage_models(found), max(lengths)
    sizes, times, ttft, bubbles = [], [], [], []
    for i, one in enumerate(found):
        dashed, name = one.setting.smooth is None, one.setting.name
        runs = one.of_length(longest)
        chunks = runs[len(runs) // 2].chunks
        sizes.append(Series(name, [(c.start, c.num_tokens) for c in chunks], dashed, i))
        times.append(Series(name, [(c.start, c.seconds * 1e3) for c in chunks], False, i))
        if models:
            points = [(float(c.start), predicted(models, c) * 1e3) for c in chunks]
            times.append(Series("  predicted", points, True, i))
        ttft.append(Series(name, [(n, one.ttft(n)) for n in sorted(lengths)], dashed, i))
        bubbles.append(Series(name, [(n, one.bubble(n)) for n in sorted(lengths)], dashed, i))
    where = f"prefix of a prompt of {number(longest)} tokens"
    return page(
        [
            Chart("Chunk sequence", where, "tokens", sizes, steps=True),
            Chart("Time of a micro-batch, slowest stage", where, "ms", times),
            Chart("Time to first token, median", "prompt tokens", "seconds", ttft),
            Chart("Bubbles, mean of the stages", "prompt tokens", "idle share", bubbles),
        ]
    )


def main(argv: list[str] | None = None) -> int:
    """Measure, print, write; the exit status."""
    words = sys.argv[1:] if argv is None else argv
    arguments = build_parser().parse_args(words)
    command = f"python -m sglang.bench_pipeline {shlex.join(words)}"
    try:
        with tempfile.TemporaryDirectory() as name:
            found = measure(arguments, Path(name))
    except (BenchError, ValueError) as error:  # ModelConfigError is a ValueError
        print(f"bench_pipeline: error: {error}", file=sys.stderr)
        return 1
    lengths = _ints(arguments.prompt_lens, "--prompt-lens")
    machine = f"machine: {platform.machine()}, {os.cpu_count()} cores"
    text = f"{machine}; {arguments.threads} thread(s) a stage\ncommand: {command}\n\n"
    text += report_text(found, lengths)
    print(text)
    if arguments.text:
        arguments.text.write_text(text + "\n")
    if arguments.json:
        arguments.json.write_text(json.dumps(report_json(found, command)) + "\n")
    if arguments.svg:
        arguments.svg.write_text(report_svg(found, lengths))
    return 0


if __name__ == "__main__":
    sys.exit(main())
