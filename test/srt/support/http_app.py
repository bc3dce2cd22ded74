"""The HTTP application over the fake scheduler: no model, no sockets, milliseconds."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx

from sglang.srt.entrypoints.http_server import create_app
from sglang.srt.entrypoints.metrics import FrontendMetrics
from sglang.srt.entrypoints.runtime import Runtime
from sglang.srt.server_args import ServerArgs
from sglang.srt.utils.hf_tokenizer import HfTokenizer
from support.byte_tokenizer import make_tokenizer
from support.fake_scheduler import FakeScheduler, ModelStub


@contextlib.asynccontextmanager
async def serving(
    tokenizer: HfTokenizer | None = None,
    scheduler: FakeScheduler | None = None,
    **server_args: Any,
) -> AsyncIterator[tuple[httpx.AsyncClient, Runtime, FakeScheduler]]:
    """A client of a ready server; everything is stopped on the way out."""
    tokenizer = tokenizer or make_tokenizer()
    scheduler = scheduler or FakeScheduler()
    args = ServerArgs(model_path="fake", served_model_name="fake", **server_args)
    metrics = FrontendMetrics(args)
    model = ModelStub(tokenizer.vocab_size)
    runtime = Runtime(
        args, model, scheduler, scheduler.to_scheduler, scheduler.to_frontend, metrics, tokenizer
    )
    transport = httpx.ASGITransport(create_app(runtime, metrics))
    try:
        await runtime.start()
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            yield client, runtime, scheduler
    finally:
        await runtime.stop()


def events(response: httpx.Response) -> list[str]:
    """The payloads of a finished event stream."""
    return [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
