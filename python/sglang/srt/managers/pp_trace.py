"""`--pp-trace FILE`: what each stage did with each micro-batch, as Chrome trace JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sglang.srt.managers.schedule_batch import ScheduleBatch
from sglang.srt.managers.step_plan import StepResult


class PipelineTrace:
    """Collects complete events ("ph": "X"; Trace Event Format), one track a stage.

    Times are microseconds since the first event, on the stages' own monotonic clocks (one clock
    for all stages of a host). The file is rewritten whenever the server falls idle and when it
    ends, so that it is valid JSON at any time. Open it in Perfetto or chrome://tracing.
    """

    MAX_EVENTS = 200_000

    def __init__(self, path: str, pp_size: int) -> None:
        self._path = Path(path)
        self._origin: float | None = None
        self._dirty = False
        self._events: list[dict[str, Any]] = [
            {"name": "thread_name", "ph": "M", "pid": 0, "tid": s, "args": {"name": f"stage {s}"}}
            for s in range(pp_size)
        ]

    def add(self, batch: ScheduleBatch, result: StepResult) -> None:
        """Record one micro-batch: how long each stage waited for it and computed it."""
        if len(self._events) >= self.MAX_EVENTS or not result.stage_spans:
            return
        if self._origin is None:
            self._origin = result.stage_spans[0].received
        args = {
            "microbatch": batch.plan.seq,
            "slot": batch.plan.mb_slot,
            "decode_rows": batch.num_decode_rows,
            "prefill_tokens": batch.num_prefill_tokens,
            "chunks": [[row.req.rid, row.start, row.end] for row in batch.rows],
            "predicted_ms": round(batch.predicted_seconds * 1e3, 3),
        }
        name = "decode" if batch.is_decode else f"prefill {batch.num_prefill_tokens}"
        for stage, span in enumerate(result.stage_spans):
            self._event(
                stage, "queued", span.received, span.started, {"microbatch": batch.plan.seq}
            )
            self._event(stage, name, span.started, span.ended, args)
        self._dirty = True

    def flush(self) -> None:
        """Write the file if there is something new."""
        if self._dirty:
            self._path.write_text(json.dumps({"traceEvents": self._events}))
            self._dirty = False

    def _event(self, stage: int, name: str, start: float, end: float, args: dict[str, Any]) -> None:
        assert self._origin is not None
        self._events.append(
            {
                "name": name,
                "ph": "X",
                "pid": 0,
                "tid": stage,
                "ts": round((start - self._origin) * 1e6, 1),
                "dur": round((end - start) * 1e6, 1),
                "args": args,
            }
        )
