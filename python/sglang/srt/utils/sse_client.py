"""A small asyncio HTTP/1.1 client for streamed answers, for tools without dependencies."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

_LINE_LIMIT = 16 << 20  # an event of SGLang's native API repeats the whole text so far


class HttpError(RuntimeError):
    """An answer that is not a stream of events."""


async def post_events(
    url: str, body: dict[str, Any], api_key: str | None = None
) -> AsyncIterator[dict[str, Any]]:
    """POST `body` and yield the JSON events of the answer up to `[DONE]`.

    Raises HttpError for another status than 200, OSError for a connection that fails.
    """
    parts = urlsplit(url)
    is_tls = parts.scheme == "https"
    port = parts.port or (443 if is_tls else 80)
    context = ssl.create_default_context() if is_tls else None
    reader, writer = await asyncio.open_connection(
        parts.hostname, port, ssl=context, limit=_LINE_LIMIT
    )
    try:
        writer.write(_request(parts.netloc, parts.path, body, api_key))
        await writer.drain()
        status, is_chunked = await _read_head(reader)
        if status != 200:
            text = (await reader.read(4096)).decode(errors="replace")
            raise HttpError(f"status {status}: {text}")
        async for line in _lines(reader, is_chunked):
            if line.startswith(b"data: "):
                if line.strip() == b"data: [DONE]":
                    return
                yield json.loads(line[6:])
    finally:
        writer.close()


def _request(host: str, path: str, body: dict[str, Any], api_key: str | None) -> bytes:
    content = json.dumps(body).encode()
    lines = [
        f"POST {path} HTTP/1.1",
        f"Host: {host}",
        "Content-Type: application/json",
        f"Content-Length: {len(content)}",
        "Connection: close",
    ]
    if api_key:
        lines.append(f"Authorization: Bearer {api_key}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, bool]:
    """(status, whether the body is chunked)."""
    status_line = await reader.readline()
    words = status_line.split()
    if len(words) < 2 or not words[1].isdigit():
        raise HttpError("the server closed the connection without an answer")
    is_chunked = False
    while (line := await reader.readline()).strip():
        name, _, value = line.decode("latin-1").partition(":")
        if name.lower() == "transfer-encoding":
            is_chunked = "chunked" in value.lower()
    return int(words[1]), is_chunked


async def _lines(reader: asyncio.StreamReader, is_chunked: bool) -> AsyncIterator[bytes]:
    if not is_chunked:
        while line := await reader.readline():
            yield line
        return
    rest = b""
    while size := int((await reader.readline()).split(b";")[0], 16):
        rest += await reader.readexactly(size)
        await reader.readexactly(2)  # the line end after a chunk
        *whole, rest = rest.split(b"\n")
        for line in whole:
            yield line
    if rest:
        yield rest
