"""A stage process without a model: stage 0 runs the fake scheduler, the others only wait.

Started like a real one. `FAKE_STAGE_FAULT` plays a fault: `fail` reports a failure while loading,
`exit` ends without a word, `stubborn` ignores SIGTERM and the call to shut down.
"""

from __future__ import annotations

import json
import os
import pathlib
import signal
import sys
import threading
import time

from sglang.srt.managers.io_struct import StageFailed, StageReady
from sglang.srt.managers.transport import ZmqReceiver, ZmqSender, frontend_messages
from support.fake_scheduler import FakeScheduler


def main() -> None:
    config = json.loads(sys.stdin.readline())
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    fault = os.environ.get("FAKE_STAGE_FAULT")
    if fault == "exit":
        sys.exit(3)
    sender = ZmqSender(config["to_frontend"])
    rank = config["pp_rank"]
    if fault == "fail" and rank == config["server_args"]["pp_size"] - 1:
        sender.send(StageFailed(rank, "weights are missing: layer 7"))
        sender.close()
        sys.exit(1)
    if fault == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if rank == 0:
        receiver = ZmqReceiver(config["to_scheduler"], frontend_messages())
        delay = float(os.environ.get("FAKE_STAGE_DELAY", "0"))
        FakeScheduler(token_delay=delay, channels=(receiver, sender)).run()
        time.sleep(0 if fault != "stubborn" else 100)
        receiver.close()
        os.unlink(config["to_scheduler"].removeprefix("ipc://"))  # ends the other stages
        sender.close()
        return
    sender.send(StageReady(rank, {"pp_rank": rank}))
    socket_file = pathlib.Path(config["to_scheduler"].removeprefix("ipc://"))
    was_there = False
    while socket_file.exists() or not was_there:
        was_there = was_there or socket_file.exists()
        time.sleep(0.02)


def _exit_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    main()
