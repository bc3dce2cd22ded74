"""Both kinds of channel: same messages, same order, never a block, never a pickle."""

from __future__ import annotations

import asyncio
import os
import stat
import threading
import time

import pytest

from sglang.srt.managers.io_struct import (
    AbortReq,
    BatchTokenOut,
    ControlReq,
    FinishReason,
    TokenizedGenerateReqInput,
    TokenOut,
)
from sglang.srt.managers.transport import (
    AsyncZmqReceiver,
    FrameDecoder,
    LocalChannel,
    TransportError,
    ZmqReceiver,
    ZmqSender,
    encode_frame,
    frontend_messages,
    private_folder,
    scheduler_messages,
)
from sglang.srt.sampling.sampling_params import SamplingParams

REQUEST = TokenizedGenerateReqInput("r", [1, 2], SamplingParams(logit_bias={3: 1.5}, stop=["é"]))
MESSAGES = [REQUEST, AbortReq(rid="r", finish=True), ControlReq("c", "flush_cache")]


@pytest.fixture(params=["zmq", "local"])
def channel(request):
    if request.param == "local":
        local = LocalChannel(frontend_messages())
        yield local, local
        local.close()
        return
    with private_folder() as folder:
        sender = ZmqSender(f"ipc://{folder}/x")
        receiver = ZmqReceiver(f"ipc://{folder}/x", frontend_messages())
        yield sender, receiver
        sender.close()
        receiver.close()


def test_messages_arrive_in_order(channel):
    sender, receiver = channel
    for message in MESSAGES:
        sender.send(message)
    received = []
    while len(received) < len(MESSAGES):
        assert receiver.poll(2000)
        while (message := receiver.recv_nowait()) is not None:
            received.append(message)
    assert received == MESSAGES
    assert receiver.recv_nowait() is None


def test_poll_without_message_ends_in_time(channel):
    start = time.monotonic()
    assert not channel[1].poll(30)
    assert time.monotonic() - start < 1


def test_poll_wakes_for_a_foreign_descriptor(channel):
    read, write = os.pipe()
    threading.Timer(0.05, os.write, (write, b"x")).start()
    assert channel[1].poll(3000, [read])
    os.close(read)
    os.close(write)


def test_sender_does_not_wait_for_a_receiver():
    with private_folder() as folder:
        sender = ZmqSender(f"ipc://{folder}/x")
        start = time.monotonic()
        for _ in range(5000):
            sender.send(MESSAGES[1])
        assert time.monotonic() - start < 2
        receiver = ZmqReceiver(f"ipc://{folder}/x", frontend_messages())
        assert receiver.poll(3000)
        sender.close()
        receiver.close()


@pytest.mark.parametrize("kind", ["zmq", "local"])
def test_asyncio_side_receives_what_another_thread_sends(kind):
    out = BatchTokenOut([TokenOut("r", [1], 2, 0, finish_reason=FinishReason("length", length=1))])

    async def receive(receiver):
        return [await asyncio.wait_for(receiver.recv(), 5) for _ in range(3)]

    def send(sender):
        for _ in range(3):
            time.sleep(0.01)
            sender.send(out)

    with private_folder() as folder:
        if kind == "local":
            receiver = sender = LocalChannel(scheduler_messages())
        else:
            receiver = AsyncZmqReceiver(f"ipc://{folder}/x", scheduler_messages())
            sender = ZmqSender(f"ipc://{folder}/x")
        thread = threading.Thread(target=send, args=(sender,))
        thread.start()
        assert asyncio.run(receive(receiver)) == [out] * 3
        thread.join()
        sender.close()
        receiver.close()


@pytest.mark.parametrize(
    "frame", [b"", b"\x07" + encode_frame(REQUEST)[1:], encode_frame(REQUEST)[:-3], b"\x01\x80"]
)
def test_foreign_frame_is_refused(frame):
    with pytest.raises(TransportError):
        frontend_messages().decode(frame)


def test_message_of_the_other_direction_is_refused():
    decoder: FrameDecoder = scheduler_messages()
    with pytest.raises(TransportError):
        decoder.decode(encode_frame(REQUEST))


def test_private_folder_is_closed_to_others_and_removed():
    with private_folder() as folder:
        assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    assert not os.path.exists(folder)
