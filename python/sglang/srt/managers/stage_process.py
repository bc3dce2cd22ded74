"""`python -m sglang.srt.managers.stage_process`: one stage of the pipeline, as a process.

The parent writes one JSON line to standard input (flags, rank, addresses) and keeps it open: its
end tells this process that the parent is gone. Everything else travels over the ipc sockets.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
import traceback
from dataclasses import dataclass

import torch

from sglang.srt.distributed.link_monitor import LinkMonitor
from sglang.srt.distributed.p2p import PeerLost
from sglang.srt.distributed.parallel_state import (
    PipelineGroup,
    StageMissing,
    connect_to_store,
    init_pipeline_group,
)
from sglang.srt.managers.io_struct import StageAlive, StageFailed, StageReady
from sglang.srt.managers.pipeline import PipelineClient, StageWorker
from sglang.srt.managers.stage_builder import Stage, build_scheduler, build_stage
from sglang.srt.managers.transport import ZmqReceiver, ZmqSender, frontend_messages
from sglang.srt.models.config import ModelConfig
from sglang.srt.server_args import ServerArgs
from sglang.srt.utils.logging import configure_logging

logger = logging.getLogger(__name__)

DEFAULT_DIST_TIMEOUT_S = 300
ALIVE_INTERVAL_S = 1.0


@dataclass(frozen=True)
class StageSpec:
    """What the parent tells a stage."""

    server_args: ServerArgs
    pp_rank: int
    to_scheduler: str
    to_frontend: str
    dist_init_method: str

    @classmethod
    def from_json(cls, line: str) -> StageSpec:
        """Parse the line on standard input."""
        fields = json.loads(line)
        return cls(
            ServerArgs.from_json(fields["server_args"]),
            fields["pp_rank"],
            fields["to_scheduler"],
            fields["to_frontend"],
            fields["dist_init_method"],
        )


def main() -> int:
    """Run one stage until it is told to stop; the exit status."""
    spec = StageSpec.from_json(sys.stdin.readline())
    # The parent decides when to end; a Ctrl-C reaches the whole process group.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _exit_with_parent()
    configure_logging(spec.server_args.log_level, f"stage {spec.pp_rank}")
    sender = ZmqSender(spec.to_frontend)
    try:
        _run(spec, sender)
    except (ValueError, StageMissing, PeerLost) as error:  # written for the user
        _report(sender, spec.pp_rank, str(error), "")
        return 1
    except Exception as error:
        _report(sender, spec.pp_rank, f"{type(error).__name__}: {error}", traceback.format_exc())
        return 1
    finally:
        sender.close()
    return 0


def _run(spec: StageSpec, sender: ZmqSender) -> None:
    args = spec.server_args
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // args.pp_size))
    model = ModelConfig.from_path(args.model_path, args.context_length, args.dtype)
    group = init_pipeline_group(
        spec.pp_rank,
        args.pp_size,
        spec.dist_init_method,
        float(args.dist_timeout or DEFAULT_DIST_TIMEOUT_S),
        args.shared_settings(),
    )
    monitor = _link_monitor(spec, group)
    if monitor is not None:
        monitor.start()
    stage = build_stage(args, model, group)
    if group.is_first:
        _serve_first(spec, stage, sender)
    else:
        _serve_follower(spec, stage, sender)
    if monitor is not None:
        monitor.stop()
    group.close()


def _link_monitor(spec: StageSpec, group: PipelineGroup) -> LinkMonitor | None:
    """Watches the other machines, if there are any; a lost one ends this stage."""
    args = spec.server_args
    if args.nnodes == 1:
        return None

    def on_lost(message: str) -> None:
        # Over a socket of its own, as sockets belong to threads.
        sender = ZmqSender(spec.to_frontend)
        _report(sender, group.pp_rank, message, "")
        sender.close()
        os._exit(1)

    remote = [rank for rank in range(group.pp_size) if rank not in args.local_pp_ranks]
    return LinkMonitor(
        group.pp_rank,
        remote if group.is_first else [],
        lambda: connect_to_store(spec.dist_init_method, args.watchdog_timeout),
        args.watchdog_timeout,
        on_lost,
    )


def _serve_first(spec: StageSpec, stage: Stage, sender: ZmqSender) -> None:
    receiver = ZmqReceiver(spec.to_scheduler, frontend_messages())
    client = PipelineClient(stage.group, stage.runner, _end_process)
    scheduler = build_scheduler(stage, client, receiver, sender)
    try:
        if scheduler.config.enable_dynamic_chunking:
            scheduler.profile_and_init_predictor()
        report = {**stage.report(), "dynamic_chunking": scheduler.chunking_report}
        sender.send(StageReady(0, report))
        scheduler.event_loop_pp()
    finally:
        if scheduler.trace is not None:
            scheduler.trace.flush()
        receiver.close()
    client.close()


def _serve_follower(spec: StageSpec, stage: Stage, sender: ZmqSender) -> None:
    worker = StageWorker(stage.group, stage.runner, _end_process)
    sender.send(StageReady(stage.group.pp_rank, stage.report()))
    reporter = AliveReporter(spec, worker)
    reporter.start()
    worker.run()


class AliveReporter(threading.Thread):
    """Tells the front end once a second what a stage is doing, over a socket of its own."""

    def __init__(self, spec: StageSpec, worker: StageWorker) -> None:
        super().__init__(name="report-alive", daemon=True)
        self._spec = spec
        self._worker = worker

    def run(self) -> None:
        """Report until the process ends. Idle waiting has no duration that matters."""
        sender = ZmqSender(self._spec.to_frontend)
        while True:
            busy = time.monotonic() - self._worker.since if self._worker.is_busy else 0.0
            sender.send(StageAlive(self._spec.pp_rank, self._worker.doing, busy))
            time.sleep(ALIVE_INTERVAL_S)


def _report(sender: ZmqSender, pp_rank: int, message: str, details: str) -> None:
    logger.error("stage %d: %s\n%s", pp_rank, message, details)
    sender.send(StageFailed(pp_rank, message, details))


def _end_process(error: BaseException) -> None:
    """A sending thread lost its peer: the stage cannot go on; its main thread may be waiting."""
    logger.error("%s", error)
    os._exit(1)


def _exit_with_parent() -> None:
    def watch() -> None:
        sys.stdin.read()
        os._exit(1)

    threading.Thread(target=watch, name="watch-parent", daemon=True).start()


if __name__ == "__main__":
    # Threads may still wait for messages of stages that are gone; only a plain exit ends them.
    status = main()
    logging.shutdown()
    sys.stdout.flush()
    os._exit(status)
