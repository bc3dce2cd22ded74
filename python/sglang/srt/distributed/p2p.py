"""Messages between neighbouring stages: fixed header, payload, tensors. No pickle.

A message is an int64 header [VERSION, kind, sequence number, payload bytes, CRC-32 of the payload],
then the payload (msgpack of an `Envelope`), then the tensors that the envelope describes. The
receiver compares version, sequence number and digest before it looks at anything.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum

import msgspec
import torch
import torch.distributed as dist

VERSION = 1
_HEADER_LEN = 5
_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int32": torch.int32,
    "int64": torch.int64,
}


class Kind(IntEnum):
    """What a message is."""

    PLAN = 1  # stage k to k + 1: a micro-batch
    RESULT = 2  # last stage to stage 0: the answer to a micro-batch
    STOP = 3  # once around the ring: nothing more will come


class PeerLost(RuntimeError):
    """The connection to a neighbouring stage has ended; the message names the stage."""


class ProtocolError(RuntimeError):
    """A message is not the one that must come now; both sides are printed."""


class Envelope(msgspec.Struct, array_like=True, frozen=True):
    """Payload of a message. `body` is an encoded StepPlan or StepResult.

    tensors: (name, dtype, shape) of the tensors that follow. spans, error: what the stages so far
    report about this plan; each span is (received, started, ended) in seconds.
    """

    body: bytes = b""
    tensors: list[tuple[str, str, list[int]]] = []
    spans: list[tuple[float, float, float]] = []
    error: str = ""


@dataclass
class Message:
    """A received message."""

    kind: Kind
    seq: int
    envelope: Envelope
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)


def digest(payload: bytes) -> int:
    """CRC-32 of a payload."""
    return zlib.crc32(payload)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Envelope)


class EdgeSender:
    """Sends to one peer from a thread of its own, in order; `send` never waits.

    How many messages are under way is bounded by the micro-batch ring, not here.
    """

    def __init__(self, peer: int, on_error: Callable[[BaseException], None]) -> None:
        self.peer = peer
        self._queue: queue.SimpleQueue[list[torch.Tensor] | None] = queue.SimpleQueue()
        self._on_error = on_error
        self._thread = threading.Thread(target=self._run, name=f"send-to-{peer}", daemon=True)
        self._thread.start()

    def send(
        self,
        kind: Kind,
        seq: int,
        envelope: Envelope,
        tensors: dict[str, torch.Tensor] | None = None,
    ) -> None:
        """Queue a message. Tensors travel through host memory and must not change afterwards."""
        tensors = {name: t.detach().cpu().contiguous() for name, t in (tensors or {}).items()}
        described = [
            (name, str(t.dtype).removeprefix("torch."), list(t.shape))
            for name, t in tensors.items()
        ]
        payload = _encoder.encode(msgspec.structs.replace(envelope, tensors=described))
        header = torch.tensor(
            [VERSION, int(kind), seq, len(payload), digest(payload)], dtype=torch.int64
        )
        body = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
        self._queue.put([header, body, *(t for t in tensors.values() if t.numel())])

    def close(self, timeout_s: float = 5.0) -> None:
        """Send what is queued, then end the thread."""
        self._queue.put(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            while (parts := self._queue.get()) is not None:
                for part in parts:
                    with _naming(self.peer):
                        dist.send(part, dst=self.peer)
        except BaseException as error:  # the process must hear of it, whatever it is
            self._on_error(error)


class EdgeReceiver:
    """Receives from one peer in a thread of its own, so that a receive is always posted.

    `get` hands messages over in order; an error of the connection is raised from it.
    """

    def __init__(self, peer: int, wake: Callable[[], None] | None = None) -> None:
        self.peer = peer
        # Unbounded: how many messages can be under way is bounded by the micro-batch ring.
        self._queue: queue.SimpleQueue[Message | BaseException] = queue.SimpleQueue()
        self._wake = wake
        self._next_seq: int | None = None
        self._thread = threading.Thread(target=self._run, name=f"recv-from-{peer}", daemon=True)
        self._thread.start()

    def get(self, timeout_s: float | None = None) -> Message | None:
        """The next message; None when none came in time (`timeout_s` 0: now)."""
        try:
            item = self._queue.get(block=timeout_s != 0, timeout=timeout_s or None)
        except queue.Empty:
            return None
        if isinstance(item, BaseException):
            raise item
        return item

    def join(self, timeout_s: float = 5.0) -> None:
        """Wait until a STOP message has ended the thread; unread messages are dropped."""
        self._thread.join(timeout_s)

    def has_message(self) -> bool:
        """Whether `get` would return at once."""
        return not self._queue.empty()

    def _run(self) -> None:
        try:
            while True:
                message = self._receive()
                self._put(message)
                if message.kind is Kind.STOP:
                    return
        except BaseException as error:  # handed to the thread that asks
            self._put(error)

    def _put(self, item: Message | BaseException) -> None:
        self._queue.put(item)
        if self._wake is not None:
            self._wake()

    def _receive(self) -> Message:
        header = torch.empty(_HEADER_LEN, dtype=torch.int64)
        self._fill(header)
        version, kind, seq, num_bytes, crc = (int(v) for v in header)
        if version != VERSION:
            raise ProtocolError(f"stage {self.peer} speaks version {version}, this one {VERSION}")
        body = torch.empty(num_bytes, dtype=torch.uint8)
        self._fill(body)
        payload = body.numpy().tobytes()
        if digest(payload) != crc:
            raise ProtocolError(
                f"message {seq} of stage {self.peer}: digest {crc:#x} announced, "
                f"{digest(payload):#x} received"
            )
        self._check_order(Kind(kind), seq)
        envelope = _decoder.decode(payload)
        tensors = {}
        for name, dtype, shape in envelope.tensors:
            tensor = torch.empty(shape, dtype=_DTYPES[dtype])
            if tensor.numel():
                self._fill(tensor)
            tensors[name] = tensor
        return Message(Kind(kind), seq, envelope, tensors)

    def _fill(self, tensor: torch.Tensor) -> None:
        with _naming(self.peer):
            dist.recv(tensor, src=self.peer)

    def _check_order(self, kind: Kind, seq: int) -> None:
        if kind is Kind.STOP:
            return
        if self._next_seq is not None and seq != self._next_seq:
            raise ProtocolError(
                f"stage {self.peer} sent micro-batch {seq}, number {self._next_seq} must come now"
            )
        self._next_seq = seq + 1


@contextlib.contextmanager
def _naming(peer: int) -> Iterator[None]:
    """Errors of a connection say whose it was."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0]
        raise PeerLost(f"lost the connection to stage {peer}: {reason}") from error
