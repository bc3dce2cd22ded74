"""What the scheduler counts, logs and sends as heartbeat."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from sglang.srt.managers.io_struct import SchedulerStats, TokenOut
from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
from sglang.srt.managers.step_plan import StepResult

if TYPE_CHECKING:
    from sglang.srt.managers.scheduler import Scheduler

logger = logging.getLogger(__name__)

HEARTBEAT_S = 1.0
DECODE_LOG_S = 5.0  # a decode line at most this often
BUBBLE_WINDOW_S = 1.0  # a gap longer than this is idleness, not a bubble


class SchedulerMetrics:
    """Counters and gauges of stage 0, and the batch lines of the log."""

    def __init__(self, pp_size: int) -> None:
        self.pp_size = pp_size
        self.aborted = 0
        self.finished = 0
        self.leaked_slots = 0
        self.generated_tokens = 0
        self.busy_s = [0.0] * pp_size
        self.gap_s = [0.0] * pp_size
        self.prediction_error = 0.0  # moving average of |predicted / measured - 1|
        self._last_end = [0.0] * pp_size
        self._last_stats = 0.0
        self._last_decode_log = 0.0
        self._tokens_at_log = 0

    def on_finished(self, req: Req) -> None:
        """A request is done, for whatever reason."""
        self.finished += 1

    def on_launch(self, batch: ScheduleBatch, scheduler: Scheduler) -> None:
        """Log the micro-batch: each prompt chunk, decoding every few seconds."""
        if not batch.is_decode:
            rows = batch.rows[batch.num_decode_rows :]
            logger.info(
                "Prefill batch, #new-seq: %d, #new-token: %d, #cached-token: %d, chunks: %s, "
                "microbatch: %d, #running-req: %d, #queue-req: %d, %s",
                len({row.req.rid for row in rows}),
                batch.num_prefill_tokens,
                sum(row.req.cached_tokens for row in rows if row.start == row.req.cached_tokens),
                ", ".join(f"[{row.start}, {row.end})" for row in rows),
                batch.plan.seq,
                len(scheduler.planner.running),
                len(scheduler.planner.waiting),
                _usage_text(scheduler),
            )
            return
        now = time.monotonic()
        if now - self._last_decode_log >= DECODE_LOG_S:
            rate = (self.generated_tokens - self._tokens_at_log) / (now - self._last_decode_log)
            logger.info(
                "Decode batch, #running-req: %d, #token/s: %.1f, #queue-req: %d, %s",
                len(scheduler.planner.running),
                rate if self._last_decode_log else 0.0,
                len(scheduler.planner.waiting),
                _usage_text(scheduler),
            )
            self._last_decode_log, self._tokens_at_log = now, self.generated_tokens

    def on_result(self, batch: ScheduleBatch, result: StepResult, outs: list[TokenOut]) -> None:
        """Count tokens, busy and idle time of each stage, and the error of the prediction."""
        self.generated_tokens += sum(len(out.token_ids) for out in outs)
        for stage, span in enumerate(result.stage_spans):
            gap = span.started - self._last_end[stage]
            if 0 < gap < BUBBLE_WINDOW_S:
                self.gap_s[stage] += gap
            self.busy_s[stage] += span.seconds
            self._last_end[stage] = span.ended
        if batch.predicted_seconds > 0 and result.stage_spans:
            measured = max(span.seconds for span in result.stage_spans)
            error = abs(batch.predicted_seconds / max(measured, 1e-9) - 1)
            self.prediction_error += 0.1 * (error - self.prediction_error)

    def heartbeat(self, scheduler: Scheduler) -> SchedulerStats | None:
        """Gauges and counters, about once a second; None in between."""
        now = time.monotonic()
        if now - self._last_stats < HEARTBEAT_S:
            return None
        self._last_stats = now
        pools = scheduler.pool_report()
        counters = scheduler.memory.counters
        gauges = {
            "num_running_reqs": float(len(scheduler.planner.running)),
            "num_decoding_reqs": float(scheduler.num_decoding()),
            "num_queue_reqs": float(len(scheduler.planner.waiting)),
            "microbatches_in_flight": float(len(scheduler.ring)),
            "num_used_tokens": float(_used(pools["kv"])),
            "token_usage": _used(pools["kv"]) / pools["kv"]["total"],
            "max_total_num_tokens": float(pools["kv"]["total"]),
            "cache_hit_rate": counters.cached_tokens / max(1, counters.prompt_tokens),
            "chunk_prediction_error": self.prediction_error,
        }
        if "mamba" in pools:
            gauges["mamba_usage"] = _used(pools["mamba"]) / pools["mamba"]["total"]
        for stage in range(self.pp_size):
            total = self.busy_s[stage] + self.gap_s[stage]
            gauges[f"bubble_fraction_stage_{stage}"] = self.gap_s[stage] / total if total else 0.0
        return SchedulerStats(
            gauges,
            {
                "generation_tokens_total": float(self.generated_tokens),
                "prompt_tokens_total": float(counters.prompt_tokens),
                "cached_tokens_total": float(counters.cached_tokens),
                "num_finished_total": float(self.finished),
                "num_aborted_requests_total": float(self.aborted),
                "num_retractions_total": float(scheduler.planner.num_retracted),
                "num_leaked_slots_total": float(self.leaked_slots),
                "num_skipped_checkpoints_total": float(counters.skipped_checkpoints),
            },
        )


def _used(pool: dict[str, int]) -> int:
    return pool["protected"] + pool["held"]


def _usage_text(scheduler: Scheduler) -> str:
    pools = scheduler.pool_report()
    text = f"token usage: {_used(pools['kv']) / pools['kv']['total']:.2f}"
    if "mamba" in pools:
        mamba = pools["mamba"]
        text += f", mamba num: {_used(mamba)}, mamba usage: {_used(mamba) / mamba['total']:.2f}"
    return text
