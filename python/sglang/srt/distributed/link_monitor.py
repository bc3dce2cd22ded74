"""Notices that another machine is gone, also where no connection says so.

A cut cable or a stopped machine closes no connection; a stage that waits for the next micro-batch
cannot tell it from an idle server. Stages that run on several machines therefore count up a pulse
in the store that stage 0 holds, once a second.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

INTERVAL_S = 1.0


class PulseStore(Protocol):
    """What the monitor needs of a `torch.distributed` store."""

    def add(self, key: str, amount: int) -> int:
        """Add to a counter and return it."""


class LinkMonitor:
    """Watches the way to the other machines from one stage.

    connect: makes a connection to stage 0's store that nobody else uses. on_lost: called at most
    once, from a thread of the monitor, with one line that names who is lost: on stage 0 a stage
    whose pulse stood still for `timeout_s` seconds, elsewhere stage 0, when it could not be reached
    for so long.
    """

    def __init__(
        self,
        pp_rank: int,
        remote_ranks: list[int],
        connect: Callable[[], PulseStore],
        timeout_s: float,
        on_lost: Callable[[str], None],
    ) -> None:
        self._rank = pp_rank
        self._remote = remote_ranks
        self._connect = connect
        self._timeout_s = timeout_s
        self._on_lost = on_lost
        self._stopped = threading.Event()
        self._seen: dict[int, tuple[int, float]] = {}  # pulse of a stage, and when it was new
        self._reached_at = time.monotonic()

    def start(self) -> None:
        """Begin to watch. Two threads: one may hang in a dead connection, the other says so."""
        now = time.monotonic()
        self._reached_at = now
        self._seen = {rank: (-1, now) for rank in self._remote}
        for target in (self._exchange, self._judge):
            threading.Thread(target=target, name=f"link-{target.__name__}", daemon=True).start()

    def stop(self) -> None:
        """The pipeline ends in order: what is lost from now on is nobody's failure."""
        self._stopped.set()

    def lost(self, now: float) -> str | None:
        """One line that names what has been out of reach for too long at time `now`, or None."""
        if now - self._reached_at > self._timeout_s:
            return f"stage 0 could not be reached from stage {self._rank} for {self._timeout_s:g} s"
        for rank, (_, since) in self._seen.items():
            if now - since > self._timeout_s:
                return f"stage {rank} gave no sign of life for {self._timeout_s:g} s"
        return None

    def exchange_once(self, store: PulseStore) -> None:
        """Send the own pulse and read the others'."""
        store.add(_key(self._rank), 1)
        for rank, (pulse, _) in list(self._seen.items()):
            found = store.add(_key(rank), 0)
            if found != pulse:
                self._seen[rank] = (found, time.monotonic())
        self._reached_at = time.monotonic()

    def _exchange(self) -> None:
        store: PulseStore | None = None
        while not self._stopped.wait(INTERVAL_S):
            try:
                store = store or self._connect()
                self.exchange_once(store)
            except Exception:  # whatever it was: `_judge` counts how long it lasts
                store = None

    def _judge(self) -> None:
        while not self._stopped.wait(INTERVAL_S / 4):
            lost = self.lost(time.monotonic())
            if lost is not None and not self._stopped.is_set():
                self._on_lost(lost)
                return


def _key(rank: int) -> str:
    return f"pulse{rank}"
