"""The two ends of the pipe: stage 0 issues plans and collects results; the others execute.

`PipelineClient` is what the scheduler talks to; with one stage there is no pipe behind it.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from sglang.srt.distributed.p2p import EdgeReceiver, EdgeSender, Envelope, Kind, Message
from sglang.srt.distributed.parallel_state import PipelineGroup
from sglang.srt.managers.step_plan import (
    StageSpan,
    StepPlan,
    StepResult,
    decode_plan,
    decode_result,
    encode,
)
from sglang.srt.model_executor.forward_batch_info import PPProxyTensors


class StageRunner(Protocol):
    """Executes plans on one stage's layers (see `model_executor.model_runner.ModelRunner`)."""

    def execute(self, plan: StepPlan, proxy: PPProxyTensors | None) -> PPProxyTensors | StepResult:
        """Run one plan; the last stage returns the result, the others the activations."""

    def synchronize(self) -> None:
        """Wait until the device has finished all that was asked of it."""


class Pipeline(Protocol):
    """What the scheduler needs of the stages. Results come back in the order of the plans."""

    def submit(self, plan: StepPlan) -> None:
        """Issue a plan. Stage 0's own part runs now."""

    def poll(self, timeout_s: float) -> StepResult | None:
        """The next result, or None when none came in time."""

    def fileno(self) -> int:
        """A descriptor that becomes readable when a result is there, -1 when polling is enough."""


class PipelineClient:
    """Stage 0's end. Errors of the connection surface in `poll` as exceptions."""

    def __init__(
        self, group: PipelineGroup, runner: StageRunner, on_error: Callable[[BaseException], None]
    ) -> None:
        self._runner = runner
        self._is_alone = group.pp_size == 1
        self._done: deque[StepResult] = deque()
        self._sender: EdgeSender | None = None
        self._receiver: EdgeReceiver | None = None
        self._wake_read, self._wake_write = -1, -1
        if not self._is_alone:
            self._wake_read, self._wake_write = os.pipe()
            os.set_blocking(self._wake_read, False)
            os.set_blocking(self._wake_write, False)
            self._sender = EdgeSender(1, on_error)
            self._receiver = EdgeReceiver(group.pp_size - 1, self._wake)

    def submit(self, plan: StepPlan) -> None:
        """See `Pipeline`."""
        out, span, error = _run_stage(self._runner, plan, None, time.monotonic())
        if self._sender is None:
            result = out if isinstance(out, StepResult) else StepResult(plan.seq, [])
            self._done.append(_with_report(result, [span], error))
            return
        assert not isinstance(out, StepResult)
        self._sender.send(
            Kind.PLAN,
            plan.seq,
            Envelope(encode(plan), spans=[span], error=error),
            None if out is None else out.tensors,
        )

    def poll(self, timeout_s: float) -> StepResult | None:
        """See `Pipeline`."""
        if self._receiver is None:
            return self._done.popleft() if self._done else None
        message = self._receiver.get(timeout_s)
        self._drain_wakeups()
        if message is None:
            return None
        return _with_report(
            decode_result(message.envelope.body), message.envelope.spans, message.envelope.error
        )

    def fileno(self) -> int:
        """See `Pipeline`."""
        return self._wake_read

    def close(self) -> None:
        """Tell the stages that nothing more will come, and wait until the word is back."""
        if self._sender is not None and self._receiver is not None:
            self._sender.send(Kind.STOP, 0, Envelope())
            self._sender.close()
            self._receiver.join()

    def _wake(self) -> None:
        try:
            os.write(self._wake_write, b"!")
        except BlockingIOError:  # the pipe is full of wake-ups already
            pass

    def _drain_wakeups(self) -> None:
        try:
            os.read(self._wake_read, 4096)
        except BlockingIOError:
            pass
        if self._receiver is not None and self._receiver.has_message():
            self._wake()


class StageWorker:
    """The end of stage 1 and later: receive, execute, pass on, until told to stop."""

    def __init__(
        self, group: PipelineGroup, runner: StageRunner, on_error: Callable[[BaseException], None]
    ) -> None:
        self._group = group
        self._runner = runner
        self._receiver = EdgeReceiver(group.pp_rank - 1)
        self._sender = EdgeSender((group.pp_rank + 1) % group.pp_size, on_error)
        self.doing = "awaiting the first micro-batch"
        self.is_busy = False
        self.since = time.monotonic()

    def run(self) -> None:
        """Serve until a STOP message. Exceptions of a stage end the server."""
        while True:
            message = self._receiver.get()
            assert message is not None
            if message.kind is Kind.STOP:
                break
            self._set_doing(f"computing micro-batch {message.seq}", True)
            self._handle(message)
            source = f"stage {self._group.pp_rank - 1}"
            self._set_doing(f"awaiting micro-batch {message.seq + 1} from {source}", False)
        self._sender.send(Kind.STOP, 0, Envelope())  # once around: stage 0 gets it back
        self._sender.close()

    def _set_doing(self, doing: str, is_busy: bool) -> None:
        self.doing, self.is_busy, self.since = doing, is_busy, time.monotonic()

    def _handle(self, message: Message) -> None:
        received = time.monotonic()
        plan = decode_plan(message.envelope.body)
        error = message.envelope.error
        out: PPProxyTensors | StepResult | None = None
        span = (received, received, received)
        if not error:
            proxy = PPProxyTensors(message.tensors)
            out, span, error = _run_stage(self._runner, plan, proxy, received)
        spans = [*message.envelope.spans, span]
        if self._group.is_last:
            result = out if isinstance(out, StepResult) else StepResult(plan.seq, [])
            self._sender.send(Kind.RESULT, plan.seq, Envelope(encode(result), [], spans, error))
            return
        assert not isinstance(out, StepResult)
        self._sender.send(
            Kind.PLAN,
            plan.seq,
            Envelope(message.envelope.body, [], spans, error),
            None if out is None else out.tensors,
        )


def _run_stage(
    runner: StageRunner, plan: StepPlan, proxy: PPProxyTensors | None, received: float
) -> tuple[PPProxyTensors | StepResult | None, tuple[float, float, float], str]:
    """Execute a plan and time it. A plan that tolerates errors turns one into its text."""
    started = time.monotonic()
    out: PPProxyTensors | StepResult | None = None
    error = ""
    try:
        out = runner.execute(plan, proxy)
        if plan.measure:
            runner.synchronize()
    except Exception as failure:
        if not plan.tolerate_errors:
            raise
        error = f"{type(failure).__name__}: {failure}"
    return out, (received, started, time.monotonic()), error


def _with_report(
    result: StepResult, spans: list[tuple[float, float, float]], error: str
) -> StepResult:
    return StepResult(
        result.seq, result.tokens, [StageSpan(*s) for s in spans], error, result.input_logprobs
    )
