"""Line charts and timetables as SVG, written by hand: no plotting library is needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from math import ceil, floor, log2, log10

COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#b07aa1", "#76b7b2", "#edc948", "#9c755f")
WIDTH, HEIGHT = 560, 340
LEFT, RIGHT, TOP, BOTTOM = 70, 150, 36, 46


@dataclass(frozen=True)
class Series:
    """One line of a chart: points (x, y) in order of x."""

    name: str
    points: Sequence[tuple[float, float]]
    dashed: bool = False
    colour: int | None = None


@dataclass(frozen=True)
class Chart:
    """A chart with its axes. log_x: powers of two; log_y: powers of ten."""

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    log_x: bool = False
    log_y: bool = False
    steps: bool = False  # draw each value up to the next x instead of slanted lines


def page(charts: Sequence[Chart], columns: int = 2) -> str:
    """Charts side by side in one SVG."""
    rows = -(-len(charts) // columns)
    width, height = WIDTH * min(columns, len(charts)), HEIGHT * rows
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for i, chart in enumerate(charts):
        x, y = WIDTH * (i % columns), HEIGHT * (i // columns)
        parts += [f'<g transform="translate({x},{y})">', *_draw(chart), "</g>"]
    return "\n".join([*parts, "</svg>\n"])


@dataclass(frozen=True)
class _Axis:
    low: float
    high: float
    log_base: int  # 0: linear

    @classmethod
    def over(cls, values: Sequence[float], log_base: int) -> _Axis:
        low, high = min(values), max(values)
        if log_base:
            log = log2 if log_base == 2 else log10
            down, up = floor(log(low) + 1e-9), ceil(log(high) - 1e-9)
            return cls(float(log_base) ** down, float(log_base) ** max(up, down + 1), log_base)
        return cls(min(0.0, low), high if high > 0 else 1.0, 0)

    def place(self, value: float) -> float:
        """Where a value lies, from 0 to 1."""
        if self.log_base:
            return log2(value / self.low) / log2(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        if self.log_base:
            log = log2 if self.log_base == 2 else log10
            count = round(log(self.high / self.low))
            every = max(1, ceil(count / 8))
            return [self.low * self.log_base**i for i in range(0, count + 1, every)]
        step = 10 ** floor(log10(self.high - self.low))
        for factor in (0.1, 0.2, 0.5, 1.0):
            if (self.high - self.low) / (step * factor) <= 7:
                step *= factor
                break
        first = ceil(self.low / step - 1e-9)
        return [step * i for i in range(first, floor(self.high / step + 1e-9) + 1)]


def _draw(chart: Chart) -> list[str]:
    points = [point for series in chart.series for point in series.points]
    parts = [f'<text x="{LEFT}" y="20" font-size="14">{escape(chart.title)}</text>']
    if not points:
        return parts
    x = _Axis.over([p[0] for p in points], 2 if chart.log_x else 0)
    y = _Axis.over([p[1] for p in points], 10 if chart.log_y else 0)
    parts += _axes(chart, x, y)
    for i, series in enumerate(chart.series):
        colour = COLOURS[(i if series.colour is None else series.colour) % len(COLOURS)]
        dash = ' stroke-dasharray="5,4"' if series.dashed else ""
        path = _path(series.points, x, y, chart.steps)
        at = TOP + 14 + 16 * i
        parts += [
            f'<polyline fill="none" stroke="{colour}" stroke-width="1.8"{dash} points="{path}"/>',
            f'<line x1="{WIDTH - RIGHT + 10}" x2="{WIDTH - RIGHT + 30}" y1="{at - 4}" '
            f'y2="{at - 4}" stroke="{colour}" stroke-width="2"{dash}/>',
            f'<text x="{WIDTH - RIGHT + 35}" y="{at}">{escape(series.name)}</text>',
        ]
    return parts


def _path(points: Sequence[tuple[float, float]], x: _Axis, y: _Axis, steps: bool) -> str:
    placed = [(_x(x.place(a)), _y(y.place(b))) for a, b in points]
    if steps:
        corners = [(b[0], a[1]) for a, b in pairwise(placed)]
        placed = [p for pair in zip(placed, [*corners, placed[-1]], strict=True) for p in pair]
    return " ".join(f"{a:.1f},{b:.1f}" for a, b in placed)


def _axes(chart: Chart, x: _Axis, y: _Axis) -> list[str]:
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    parts = [
        f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 10}" text-anchor="middle">'
        f"{escape(chart.x_label)}</text>",
        f'<text transform="translate(16,{(TOP + bottom) / 2}) rotate(-90)" text-anchor="middle">'
        f"{escape(chart.y_label)}</text>",
    ]
    for value in x.ticks():
        at = _x(x.place(value))
        parts += [
            f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{bottom}" stroke="#e4e4e4"/>',
            f'<text x="{at:.1f}" y="{bottom + 16}" text-anchor="middle">{number(value)}</text>',
        ]
    for value in y.ticks():
        at = _y(y.place(value))
        parts += [
            f'<line x1="{LEFT}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}" stroke="#e4e4e4"/>',
            f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{number(value)}</text>',
        ]
    return parts


def _x(share: float) -> float:
    return LEFT + share * (WIDTH - RIGHT - LEFT)


def _y(share: float) -> float:
    return HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP)


def number(value: float) -> str:
    """A tick's label: 1k, 64k, 1M (thousands), or up to three digits."""
    for size, suffix in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{suffix}"
    return f"{value:.3g}"
