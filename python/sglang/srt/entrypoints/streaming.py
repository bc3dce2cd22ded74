"""Server-sent events, and the outputs of several requests as one stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import StreamingResponse

from sglang.srt.entrypoints.http_guard import error_body, unless_disconnected
from sglang.srt.managers.request_state import Delta, Generation, RequestError

_encoder = msgspec.json.Encoder()
_DONE = b"data: [DONE]\n\n"


class EventResponse(StreamingResponse):
    """Streams events; whatever ends the response also ends the generator, which frees requests."""

    def __init__(self, events: AsyncGenerator[bytes, None]) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._events = events

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Send the response."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._events.aclose()


async def event_response(
    request: Request, chunks: AsyncGenerator[dict[str, Any], None]
) -> EventResponse:
    """Stream `chunks` as events. What is refused before the first chunk is an HTTP error.

    Raises RequestError then.
    """
    try:
        first = await unless_disconnected(request, anext(chunks))
    except BaseException:
        await chunks.aclose()
        raise
    return EventResponse(_events(request.url.path, first, chunks))


async def merge(generations: Sequence[Generation]) -> AsyncGenerator[tuple[int, Delta], None]:
    """(index, delta) of all `generations`, in order of arrival."""
    if len(generations) == 1:
        async for delta in generations[0].deltas():
            yield 0, delta
        return
    queue: asyncio.Queue[tuple[int, Delta | BaseException | None]] = asyncio.Queue()
    tasks = [asyncio.create_task(_feed(queue, i, g)) for i, g in enumerate(generations)]
    num_running = len(tasks)
    try:
        while num_running:
            index, item = await queue.get()
            if item is None:
                num_running -= 1
            elif isinstance(item, BaseException):
                raise item
            else:
                yield index, item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _feed(queue: asyncio.Queue[Any], index: int, generation: Generation) -> None:
    try:
        async for delta in generation.deltas():
            queue.put_nowait((index, delta))
        queue.put_nowait((index, None))
    except RequestError as error:
        queue.put_nowait((index, error))


async def _events(
    path: str, first: dict[str, Any], chunks: AsyncIterator[dict[str, Any]]
) -> AsyncGenerator[bytes, None]:
    async with aclosing(chunks):  # type: ignore[type-var]
        try:
            yield _event(first)
            async for chunk in chunks:
                yield _event(chunk)
        except RequestError as error:
            yield _event(error_body(path, error.status, error.message, error.param))
        yield _DONE


def _event(chunk: dict[str, Any]) -> bytes:
    return b"data: " + _encoder.encode(chunk) + b"\n\n"
