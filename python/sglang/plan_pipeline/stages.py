"""Stages and links on a virtual clock: what happens to a micro-batch once it is issued."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from sglang.plan_pipeline.profile import Link
from sglang.srt.managers.chunk_sizer import LatencyModel

Rows = list[tuple[int, int]]  # (prefix length, tokens) of each row of a micro-batch


@dataclass(frozen=True)
class Span:
    """One micro-batch on one stage; seconds of the virtual clock."""

    start: float
    end: float


@dataclass
class Job:
    """One micro-batch in the pipe."""

    seq: int
    rows: Rows
    spans: list[Span] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """Tokens of all rows."""
        return sum(count for _, count in self.rows)


def compute_seconds(model: LatencyModel, rows: Rows) -> float:
    """Time of a micro-batch on one stage that has a core to itself."""
    return model.c + sum(model.added(start, count) for start, count in rows)


@dataclass
class _Stage:
    model: LatencyModel
    queue: deque[Job] = field(default_factory=deque)
    job: Job | None = None
    started: float = 0.0
    left: float = 0.0  # seconds of work of the running job, at full speed
    link_free: float = 0.0  # when the outgoing link has sent all that it was given


class VirtualStages:
    """Stages in order, a link after each; micro-batches never overtake each other.

    When more stages compute than `cores` (None: each has its own), all of them are slowed down
    alike: with s stages on k cores each runs at k / s of its speed (processor sharing).
    """

    def __init__(
        self,
        models: tuple[LatencyModel, ...],
        link: Link,
        activation_bytes_per_token: float,
        cores: int | None = None,
        step_overhead_s: float = 0.0,
    ) -> None:
        self.now = 0.0
        self._stages = [_Stage(model) for model in models]
        self._link = link
        self._bytes_per_token = activation_bytes_per_token
        self._cores = cores
        self._overhead = step_overhead_s
        self._events: list[tuple[float, int, int, Job]] = []  # (time, order, stage, job): arrivals
        self._ends: list[tuple[float, int]] = []  # (time, stage), kept when nothing slows a stage
        self._speed = 1.0
        self._order = 0
        self._results: deque[Job] = deque()

    def submit(self, job: Job) -> None:
        """Issue a micro-batch; returns when stage 0 has computed its part, as on the server."""
        self._enter(0, job)
        self._advance(lambda: len(job.spans) > 0)

    def poll(self) -> Job | None:
        """The next result that is back at stage 0 by now."""
        return self._results.popleft() if self._results else None

    def wait(self, until: float) -> None:
        """Let time pass until a result is back, at most to `until`."""
        self._advance(lambda: bool(self._results), until)

    # -- events ----------------------------------------------------------------------------------

    def _advance(self, reached: Callable[[], bool], until: float = float("inf")) -> None:
        while not reached():
            event = self._events[0][0] if self._events else float("inf")
            stage, ends = self._next_end()
            step = min(event, ends)
            if step == float("inf") or step > until:
                self._pass(min(step, until))
                return
            self._pass(step)
            if event <= ends:
                _, _, index, job = heapq.heappop(self._events)
                self._arrive(index, job)
            else:
                self._finish(stage)

    def _next_end(self) -> tuple[int, float]:
        """Which stage is done next, and when, as long as nothing else happens before."""
        if self._cores is None:
            return self._ends[0][::-1] if self._ends else (-1, float("inf"))
        busy = [i for i, stage in enumerate(self._stages) if stage.job is not None]
        if not busy:
            return -1, float("inf")
        first = min(busy, key=lambda i: self._stages[i].left)
        self._speed = min(1.0, self._cores / len(busy))
        return first, self.now + self._stages[first].left / self._speed

    def _pass(self, time: float) -> None:
        """Let time pass in which no stage starts or ends anything."""
        if time == float("inf"):
            return
        if self._cores is not None:
            for stage in self._stages:
                stage.left -= (time - self.now) * self._speed
        self.now = max(self.now, time)

    def _arrive(self, index: int, job: Job) -> None:
        if index == len(self._stages):
            self._results.append(job)
        else:
            self._enter(index, job)

    def _enter(self, index: int, job: Job) -> None:
        stage = self._stages[index]
        if stage.job is not None:
            stage.queue.append(job)
            return
        stage.job, stage.started = job, self.now
        stage.left = compute_seconds(stage.model, job.rows)
        if index == 0:
            # Planning, sending and receiving: the span of the layers themselves starts after it.
            stage.started += self._overhead
            stage.left += self._overhead
        if self._cores is None:
            heapq.heappush(self._ends, (self.now + stage.left, index))

    def _finish(self, index: int) -> None:
        stage = self._stages[index]
        if self._cores is None:
            heapq.heappop(self._ends)
        job, stage.job = stage.job, None
        assert job is not None
        job.spans.append(Span(stage.started, self.now))
        last = index == len(self._stages) - 1
        if last and index == 0:
            self._results.append(job)
        else:
            num_bytes = 0.0 if last else self._bytes_per_token * job.num_tokens
            sent = max(self.now, stage.link_free) + self._link.seconds(num_bytes)
            stage.link_free = sent
            self._order += 1
            entry = (sent + self._link.latency_s, self._order, index + 1, job)
            heapq.heappush(self._events, entry)
        if stage.queue:
            self._enter(index, stage.queue.popleft())
