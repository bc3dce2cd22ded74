"""Draw the timetable of a pipeline from a `--pp-trace` file: stages by time, one colour a request.

    python tools/timetable.py trace.json timetable.svg [--last N]

Prints the bubble fraction of each stage: the share of the drawn time in which it did not compute.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

WIDTH, LEFT, ROW, GAP, TOP = 1100, 70, 46, 14, 40
COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#b07aa1", "#76b7b2", "#edc948", "#9c755f")


@dataclass(frozen=True)
class Bar:
    """One micro-batch on one stage; times in milliseconds."""

    stage: int
    start: float
    end: float
    label: str
    rid: str
    microbatch: int


def read_bars(path: Path, last: int | None) -> list[Bar]:
    """Compute events of a trace, of the last `last` micro-batches."""
    events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    bars = [
        Bar(
            event["tid"],
            event["ts"] / 1e3,
            (event["ts"] + event["dur"]) / 1e3,
            _label(event["args"]),
            event["args"]["chunks"][0][0],
            event["args"]["microbatch"],
        )
        for event in events
        if event["ph"] == "X" and event["name"] != "queued"
    ]
    if last is not None:
        kept = sorted({bar.microbatch for bar in bars})[-last:]
        bars = [bar for bar in bars if bar.microbatch in kept]
    return bars


def bubble_fractions(bars: list[Bar]) -> list[float]:
    """Share of the time between the first start and the last end in which a stage stood still."""
    begin, end = min(bar.start for bar in bars), max(bar.end for bar in bars)
    stages = range(max(bar.stage for bar in bars) + 1)
    busy = [sum(bar.end - bar.start for bar in bars if bar.stage == stage) for stage in stages]
    return [1 - b / (end - begin) for b in busy]


def draw(bars: list[Bar]) -> str:
    """The timetable as SVG."""
    begin, end = min(bar.start for bar in bars), max(bar.end for bar in bars)
    scale = (WIDTH - LEFT - 20) / (end - begin)
    stages = max(bar.stage for bar in bars) + 1
    rids = list(dict.fromkeys(bar.rid for bar in bars))
    height = TOP + stages * (ROW + GAP) + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{LEFT}" y="20">{end - begin:.0f} ms; bars: prompt tokens of a micro-batch, '
        "or rows of a decode step</text>",
    ]
    for stage, bubble in enumerate(bubble_fractions(bars)):
        y = TOP + stage * (ROW + GAP)
        parts.append(f'<text x="6" y="{y + ROW / 2}">stage {stage}</text>')
        parts.append(f'<text x="6" y="{y + ROW / 2 + 15}" fill="#777">{bubble:.0%} idle</text>')
    for bar in bars:
        x, y = LEFT + (bar.start - begin) * scale, TOP + bar.stage * (ROW + GAP)
        width = max(1.0, (bar.end - bar.start) * scale - 0.6)
        colour = COLOURS[rids.index(bar.rid) % len(COLOURS)]
        parts.append(
            f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{ROW}" fill="{colour}">'
            f"<title>{escape(bar.rid)} micro-batch {bar.microbatch}: {escape(bar.label)}, "
            f"{bar.end - bar.start:.1f} ms</title></rect>"
        )
        if width > 7 * len(bar.label):
            parts.append(
                f'<text x="{x + width / 2:.1f}" y="{y + ROW / 2 + 4}" fill="white" '
                f'text-anchor="middle">{escape(bar.label)}</text>'
            )
    return "\n".join([*parts, "</svg>\n"])


def _label(args: dict[str, Any]) -> str:
    if args["prefill_tokens"]:
        return str(args["prefill_tokens"])
    return f"{args['decode_rows']}d"


def main() -> None:
    """Read a trace, write the picture, print the bubbles."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("svg", type=Path)
    parser.add_argument("--last", type=int, help="only the last N micro-batches")
    arguments = parser.parse_args()
    bars = read_bars(arguments.trace, arguments.last)
    if not bars:
        parser.error(f"{arguments.trace} has no micro-batch")
    arguments.svg.write_text(draw(bars))
    for stage, bubble in enumerate(bubble_fractions(bars)):
        print(f"stage {stage}: idle {bubble:.1%}")


if __name__ == "__main__":
    main()
