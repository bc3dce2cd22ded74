"""`/metrics` in Prometheus' format: the scheduler's gauges and counters, and what clients saw."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from sglang.srt.managers.io_struct import SchedulerStats
from sglang.srt.managers.request_state import Generation
from sglang.srt.server_args import ServerArgs

if TYPE_CHECKING:
    from sglang.srt.entrypoints.runtime import Runtime

disable_created_metrics()  # a second series for each counter that nobody reads

_LATENCY_BUCKETS = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
    *(1, 2, 5, 10, 20, 50, 100, 200, 400),
)


class FrontendMetrics:
    """Counts and latencies of requests, in SGLang's names. Implements `RequestObserver`."""

    def __init__(self, server_args: ServerArgs) -> None:
        self.labels = {"model_name": server_args.served_model_name or server_args.model_path}
        self.registry = CollectorRegistry()
        self._ttft = self._histogram("time_to_first_token_seconds", "arrival to first token")
        self._itl = self._histogram("inter_token_latency_seconds", "time between two tokens")
        self._tpot = self._histogram(
            "time_per_output_token_seconds", "mean time of a request's tokens after the first"
        )
        self._e2e = self._histogram("e2e_request_latency_seconds", "arrival to end")
        self._prompt_tokens = self._counter("prompt_tokens", "tokens of prompts")
        self._cached_tokens = self._counter("cached_tokens", "prompt tokens found in the cache")
        self._generation_tokens = self._counter("generation_tokens", "tokens generated")
        self._requests = self._counter("num_requests", "requests that ended")
        self._aborted = self._counter("num_aborted_requests", "requests that did not end well")

    def observe_tokens(self, generation: Generation, num_tokens: int, gap_seconds: float) -> None:
        """`num_tokens` came together, `gap_seconds` after the ones before or the arrival."""
        self._generation_tokens.inc(num_tokens)
        if generation.completion_tokens == num_tokens:
            self._ttft.observe(gap_seconds)
            return
        for _ in range(num_tokens):
            self._itl.observe(gap_seconds / num_tokens)

    def observe_end(self, generation: Generation) -> None:
        """The request ended, well or not."""
        self._requests.inc()
        self._prompt_tokens.inc(generation.prompt_tokens)
        self._cached_tokens.inc(generation.cached_tokens)
        reason = generation.finish_reason
        if reason is None or reason.type == "abort":
            self._aborted.inc()
        elif generation.finished_at is not None:
            self._e2e.observe(generation.finished_at - generation.created)
            num_later = generation.completion_tokens - 1
            if generation.first_token_at is not None and num_later > 0:
                decode_seconds = generation.last_token_at - generation.first_token_at
                self._tpot.observe(decode_seconds / num_later)

    def render(self, runtime: Runtime) -> bytes:
        """Everything as text for a Prometheus server."""
        own = generate_latest(self.registry)
        scheduler = CollectorRegistry()
        scheduler.register(_SchedulerCollector(runtime.manager.stats, self.labels))
        return own + generate_latest(scheduler)

    def _histogram(self, name: str, text: str) -> Histogram:
        metric = Histogram(
            f"sglang:{name}",
            text,
            list(self.labels),
            buckets=_LATENCY_BUCKETS,
            registry=self.registry,
        )
        return metric.labels(**self.labels)

    def _counter(self, name: str, text: str) -> Counter:
        metric = Counter(f"sglang:{name}", text, list(self.labels), registry=self.registry)
        return metric.labels(**self.labels)


# Counted by the front end; the scheduler's own count of the same name would double the metric.
_FRONTEND_COUNTERS = frozenset(
    """prompt_tokens cached_tokens generation_tokens num_requests num_aborted_requests""".split()
)


class _SchedulerCollector:
    """The last `SchedulerStats` as metric families."""

    def __init__(self, stats: SchedulerStats, labels: dict[str, str]) -> None:
        self._stats = stats
        self._labels = labels

    def collect(self) -> Iterator[Metric]:
        """Called by the registry for each scrape."""
        kinds: tuple[tuple[Any, dict[str, float]], ...] = (
            (GaugeMetricFamily, self._stats.gauges),
            (CounterMetricFamily, self._stats.counters),
        )
        for family_type, metrics in kinds:
            families: dict[str, Metric] = {}
            for name, value in sorted(metrics.items()):
                if name.removesuffix("_total") in _FRONTEND_COUNTERS:
                    continue
                base, stage = _split_stage(name)
                labels = {**self._labels, **({} if stage is None else {"pp_rank": stage})}
                if base not in families:
                    families[base] = family_type(
                        f"sglang:{base}", base.replace("_", " "), labels=list(labels)
                    )
                families[base].add_metric(list(labels.values()), value)  # type: ignore[attr-defined]
            yield from families.values()


def _split_stage(name: str) -> tuple[str, str | None]:
    """`x_stage_3` as ("x", "3"): one metric with a label, not one metric a stage."""
    base, separator, stage = name.rpartition("_stage_")
    return (base, stage) if separator and stage.isdigit() else (name, None)
