"""Micro-batches between issue and result."""

from __future__ import annotations

from collections import deque

from sglang.srt.managers.schedule_batch import ScheduleBatch


class MicrobatchRing:
    """`pp_size + pp_async_batch_depth` slots; a micro-batch holds one until its result is back.

    Results come back in the order of issue, so the oldest micro-batch is the one awaited.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._in_flight: deque[tuple[int, ScheduleBatch]] = deque()
        self._free = deque(range(size))

    def __len__(self) -> int:
        return len(self._in_flight)

    @property
    def free_slot(self) -> int | None:
        """The slot that the next micro-batch will take, None when all are in use."""
        return self._free[0] if self._free else None

    @property
    def oldest(self) -> ScheduleBatch | None:
        """The micro-batch whose result comes next."""
        return self._in_flight[0][1] if self._in_flight else None

    def push(self, batch: ScheduleBatch) -> None:
        """Take the free slot for a micro-batch that is being issued."""
        self._in_flight.append((self._free.popleft(), batch))

    def pop(self, seq: int) -> ScheduleBatch:
        """The micro-batch of result `seq`. Raises RuntimeError if another must come."""
        if not self._in_flight or self._in_flight[0][1].plan.seq != seq:
            awaited = self._in_flight[0][1].plan.seq if self._in_flight else None
            raise RuntimeError(f"result of micro-batch {seq} came, {awaited} was awaited")
        slot, batch = self._in_flight.popleft()
        self._free.append(slot)
        return batch
