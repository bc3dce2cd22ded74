"""Who is called lost, and when."""

from __future__ import annotations

import threading
import time

import pytest

from sglang.srt.distributed import link_monitor
from sglang.srt.distributed.link_monitor import LinkMonitor
from sglang.srt.distributed.parallel_state import interface_towards


class Store:
    """Counters; `broken` raises like a connection that has ended."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.broken = False

    def add(self, key: str, amount: int) -> int:
        """As in torch.distributed."""
        if self.broken:
            raise RuntimeError("Broken pipe")
        self.counts[key] = self.counts.get(key, 0) + amount
        return self.counts[key]


def test_a_stage_whose_pulse_stands_still_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    store, lost, called = Store(), [], threading.Event()
    monkeypatch.setattr(link_monitor, "INTERVAL_S", 0.02)

    def on_lost(message: str) -> None:
        lost.append(message)
        called.set()

    monitor = LinkMonitor(0, [1, 2], lambda: store, 0.5, on_lost)
    monitor.start()
    until = time.monotonic() + 1.0
    while time.monotonic() < until:  # stage 1 lives, stage 2 almost to the end
        store.add("pulse1", 1)
        if until - time.monotonic() > 0.1:
            store.add("pulse2", 1)
        assert not lost
        time.sleep(0.02)
    while not called.is_set():
        store.add("pulse1", 1)
        time.sleep(0.02)
    assert lost == ["stage 2 gave no sign of life for 0.5 s"]


def test_a_follower_that_cannot_reach_stage_0_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    store, lost, called = Store(), [], threading.Event()
    monkeypatch.setattr(link_monitor, "INTERVAL_S", 0.02)

    def on_lost(message: str) -> None:
        lost.append(message)
        called.set()

    monitor = LinkMonitor(3, [], lambda: store, 0.3, on_lost)
    monitor.start()
    time.sleep(0.4)
    assert store.counts["pulse3"] > 2
    assert not lost
    store.broken = True
    assert called.wait(5)
    assert lost == ["stage 0 could not be reached from stage 3 for 0.3 s"]


def test_an_orderly_end_is_nobodys_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    store, lost = Store(), []
    monkeypatch.setattr(link_monitor, "INTERVAL_S", 0.02)
    monitor = LinkMonitor(1, [], lambda: store, 0.2, lost.append)
    monitor.start()
    time.sleep(0.1)
    monitor.stop()
    store.broken = True
    time.sleep(0.4)
    assert not lost


def test_the_interface_of_the_loopback_is_found() -> None:
    assert interface_towards("127.0.0.1") in ("lo", "lo0")
    assert interface_towards("no-such-host.invalid") is None
