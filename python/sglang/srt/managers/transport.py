"""Channels between the front end and the stage processes: msgpack over ZMQ, or in process.

A frame is one version byte and one tagged msgpack struct of `io_struct`; nothing is ever pickled.
Receivers bind and senders connect, so a message sent before its receiver is up waits in the
sender. No queue has a limit: a sender never blocks the loop that calls it, and what can pile up
is bounded by the admission limits of the scheduler.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import shutil
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import msgspec
import zmq
import zmq.asyncio

from sglang.srt.managers.io_struct import MESSAGE_VERSION, FrontendMessage, SchedulerMessage

# sun_path of a Unix socket holds 108 bytes on Linux; the file name needs some of them.
_MAX_FOLDER_CHARS = 80
SEND_LINGER_MS = 1000


class TransportError(RuntimeError):
    """A frame that is not a message of this build."""


class Sender(Protocol):
    """The sending end of a channel. Not thread-safe: one thread owns it."""

    def send(self, message: Any) -> None:
        """Queue `message` and return at once."""

    def close(self) -> None:
        """Give queued messages up to a second to leave, then close."""


class Receiver(Protocol):
    """The receiving end of a channel for a synchronous loop. One thread owns it."""

    def recv_nowait(self) -> Any | None:
        """The next message, or None. Raises TransportError on a foreign frame."""

    def poll(self, timeout_ms: int, extra_fds: Sequence[int] = ()) -> bool:
        """Wait until a message or one of `extra_fds` is readable; False after `timeout_ms`."""

    def close(self) -> None:
        """Close; messages not yet received are lost."""


class AsyncReceiver(Protocol):
    """The receiving end of a channel for an asyncio loop."""

    async def recv(self) -> Any:
        """Wait for the next message. Raises TransportError on a foreign frame."""

    def close(self) -> None:
        """Close; messages not yet received are lost."""


_encoder = msgspec.msgpack.Encoder()


def encode_frame(message: msgspec.Struct) -> bytes:
    """`message` as one frame."""
    return bytes((MESSAGE_VERSION,)) + _encoder.encode(message)


class FrameDecoder:
    """Decodes the frames of one direction; `message_type` is a union of tagged structs."""

    def __init__(self, message_type: Any) -> None:
        self._decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(message_type)

    def decode(self, frame: bytes) -> Any:
        """The message of `frame`. Raises TransportError when it is not one of ours."""
        if not frame or frame[0] != MESSAGE_VERSION:
            version = frame[0] if frame else None
            raise TransportError(
                f"message version is {version}, this process speaks {MESSAGE_VERSION}: "
                "the processes come from different builds"
            )
        try:
            return self._decoder.decode(memoryview(frame)[1:])
        except msgspec.DecodeError as error:
            raise TransportError(f"a frame is not a message: {error}") from error


def frontend_messages() -> FrameDecoder:
    """Decoder of what the scheduler receives."""
    return FrameDecoder(FrontendMessage)


def scheduler_messages() -> FrameDecoder:
    """Decoder of what the front end receives."""
    return FrameDecoder(SchedulerMessage)


class ZmqSender:
    """PUSH socket that connects to `address`.

    `close` waits up to `linger_ms` for what is queued: the last words of a stage that ends.
    """

    def __init__(self, address: str, linger_ms: int = SEND_LINGER_MS) -> None:
        # A context of its own, because only ending the context waits for queued messages.
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.PUSH)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.LINGER, linger_ms)
        self._socket.connect(address)

    def send(self, message: msgspec.Struct) -> None:
        """Queue `message` and return at once."""
        self._socket.send(encode_frame(message), zmq.NOBLOCK)

    def close(self) -> None:
        """Give queued messages their time to leave, then close."""
        self._socket.close()
        self._context.term()


class ZmqReceiver:
    """PULL socket bound to `address`, for a synchronous loop."""

    def __init__(self, address: str, decoder: FrameDecoder) -> None:
        self._decoder = decoder
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PULL)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(address)

    def recv_nowait(self) -> Any | None:
        """The next message, or None. Raises TransportError on a foreign frame."""
        try:
            return self._decoder.decode(self._socket.recv(zmq.NOBLOCK))
        except zmq.Again:
            return None

    def poll(self, timeout_ms: int, extra_fds: Sequence[int] = ()) -> bool:
        """Wait until a message or one of `extra_fds` is readable; False after `timeout_ms`."""
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        for fd in extra_fds:
            poller.register(fd, zmq.POLLIN)
        return bool(poller.poll(timeout_ms))

    def close(self) -> None:
        """Close; messages not yet received are lost."""
        self._socket.close()


class AsyncZmqReceiver:
    """PULL socket bound to `address`, for an asyncio loop."""

    def __init__(self, address: str, decoder: FrameDecoder) -> None:
        self._decoder = decoder
        self._socket = zmq.asyncio.Context.instance().socket(zmq.PULL)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(address)

    async def recv(self) -> Any:
        """Wait for the next message. Raises TransportError on a foreign frame."""
        return self._decoder.decode(await self._socket.recv())

    def close(self) -> None:
        """Close; messages not yet received are lost."""
        self._socket.close()


class LocalChannel:
    """A channel inside one process, used from two threads: one sends, one receives.

    Messages pass through the codec as well, so both ends behave as they do between processes.
    """

    def __init__(self, decoder: FrameDecoder) -> None:
        self._decoder = decoder
        self._frames: deque[bytes] = deque()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)

    def send(self, message: msgspec.Struct) -> None:
        """Queue `message` and return at once."""
        self._frames.append(encode_frame(message))
        # A full pipe already wakes the receiver.
        with contextlib.suppress(BlockingIOError, OSError):
            os.write(self._wake_write, b"\0")

    def recv_nowait(self) -> Any | None:
        """The next message, or None. Raises TransportError on a foreign frame."""
        if not self._frames:
            with contextlib.suppress(BlockingIOError, OSError):
                os.read(self._wake_read, 4096)
            # A message may have come between the test and the read that took its wake-up.
            if not self._frames:
                return None
        return self._decoder.decode(self._frames.popleft())

    def poll(self, timeout_ms: int, extra_fds: Sequence[int] = ()) -> bool:
        """Wait until a message or one of `extra_fds` is readable; False after `timeout_ms`."""
        if self._frames:
            return True
        ready, _, _ = select.select([self._wake_read, *extra_fds], [], [], timeout_ms / 1000)
        return bool(ready)

    async def recv(self) -> Any:
        """Wait for the next message. Raises TransportError on a foreign frame."""
        loop = asyncio.get_running_loop()
        while (message := self.recv_nowait()) is None:
            readable = asyncio.Event()
            loop.add_reader(self._wake_read, readable.set)
            try:
                await readable.wait()
            finally:
                loop.remove_reader(self._wake_read)
        return message

    def close(self) -> None:
        """Close; messages not yet received are lost."""
        for fd in (self._wake_read, self._wake_write):
            with contextlib.suppress(OSError):
                os.close(fd)


@contextlib.contextmanager
def private_folder() -> Iterator[str]:
    """A temporary folder that only this user can enter (mode 0700), for ipc sockets."""
    base = tempfile.gettempdir()
    folder = tempfile.mkdtemp(
        prefix="sglang-", dir=base if len(base) < _MAX_FOLDER_CHARS else "/tmp"
    )
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
