"""A plan as text table, JSON and charts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sglang.plan_pipeline.svg import Chart, Series, number, page
from sglang.plan_pipeline.sweep import OBJECTIVES, Plan, PlanRow


def table(rows: Sequence[Sequence[str]]) -> str:
    """Columns of text, the first line as heading; numbers stand right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)) for row in rows]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def seconds(value: float) -> str:
    """Three digits (at least whole seconds), in s or ms."""
    if value >= 100:
        return f"{value:.0f} s"
    return f"{value:.3g} s" if value >= 1 else f"{value * 1e3:.3g} ms"


def plan_text(plan: Plan, objective: str, every_row: bool = False) -> str:
    """The table (the best row of each mode and number of stages, or all rows) and the advice."""
    lengths = [number(length) for length in plan.lengths]
    heading = [
        "pp", "chunk", "chunks", *(f"TTFT {n}" for n in lengths),
        *(f"bubble {n}" for n in lengths), "tokens/s", "bubble busy", "efficiency",
    ]  # fmt: skip
    rows = plan.rows if every_row else best_of_modes(plan, objective)
    body = [_cells(plan, row, objective) for row in rows]
    parts = [table([heading, *body])]
    parts += [f"pp {pp}: left out, {why}" for pp, why in plan.skipped.items()]
    return "\n".join([*parts, "", *advice(plan)])


def best_of_modes(plan: Plan, objective: str) -> list[PlanRow]:
    """The best chunk size of each number of stages and each smooth factor."""
    best: dict[tuple[int, float | None], PlanRow] = {}
    for row in plan.rows:
        key = (row.pp_size, row.smooth)
        if key not in best or row.cost(objective) < best[key].cost(objective):
            best[key] = row
    return list(best.values())


def _cells(plan: Plan, row: PlanRow, objective: str) -> list[str]:
    return [
        str(row.pp_size),
        f"{row.mode} {row.chunk_size}",
        str(row.num_chunks[-1]),
        *(seconds(value) for value in row.ttft_s),
        *(f"{value:.1%}" for value in row.bubble),
        number(row.tokens_per_s),
        f"{row.burst_bubble:.1%}",
        f"{plan.efficiency(row, objective):.2f}",
    ]


def advice(plan: Plan) -> list[str]:
    """Flags to use: for each number of stages, and over all."""
    lines = []
    names = {"ttft": "time to first token", "throughput": "throughput"}
    for objective in OBJECTIVES:
        lines.append(f"Flags for the best {names[objective]}:")
        for pp_size in plan.pp_sizes():
            row = plan.best(objective, pp_size)
            lines.append(f"  {row.flags()}    # {_value(row, objective)}")
        row = plan.best(objective)
        lines.append(f"  over all (within 1 %, fewest stages): --pp-size {row.pp_size}")
    return lines


def _value(row: PlanRow, objective: str) -> str:
    if objective == "ttft":
        return f"{seconds(row.mean_ttft_s)}, bubble {max(row.bubble):.1%}"
    return f"{number(row.tokens_per_s)} tokens/s, bubble {row.burst_bubble:.1%}"


def plan_json(plan: Plan) -> dict[str, Any]:
    """Everything, as plain values."""
    return {
        "lengths": list(plan.lengths),
        "rows": [row.as_json() for row in plan.rows],
        "skipped": {str(pp): why for pp, why in plan.skipped.items()},
        "recommended": {
            objective: {
                "overall": plan.best(objective).as_json(),
                "per_pp_size": [plan.best(objective, pp).as_json() for pp in plan.pp_sizes()],
            }
            for objective in OBJECTIVES
        },
    }


def plan_svg(plan: Plan, objective: str) -> str:
    """Time to first token, throughput and bubbles over stages, one line a mode."""
    rows = best_of_modes(plan, objective)
    modes = list(dict.fromkeys(row.mode for row in rows))
    alone = [row for row in rows if row.pp_size == 1]

    def lines(value: str) -> list[Series]:
        found = []
        for mode in modes:
            mine = [row for row in rows if row.mode == mode]
            if mode != "static":  # with one stage there is nothing to level: static chunks
                mine = alone + mine
            points = [(float(row.pp_size), _VALUES[value](row)) for row in mine]
            found.append(Series(mode, points, dashed=mode == "static"))
        return found

    longest = number(plan.lengths[-1])
    charts = [
        Chart(f"Time to first token, {longest} tokens", "stages", "seconds",
              lines("ttft"), log_x=True, log_y=True),
        Chart(f"Bubbles, {longest} tokens alone", "stages", "idle share", lines("bubble"), True),
        Chart("Throughput, all at once", "stages", "prompt tokens/s",
              lines("throughput"), log_x=True, log_y=True),
        Chart("Bubbles, all at once", "stages", "idle share", lines("burst"), log_x=True),
    ]  # fmt: skip
    return page(charts)


_VALUES = {
    "ttft": lambda row: row.ttft_s[-1],
    "bubble": lambda row: row.bubble[-1],
    "throughput": lambda row: row.tokens_per_s,
    "burst": lambda row: row.burst_bubble,
}
