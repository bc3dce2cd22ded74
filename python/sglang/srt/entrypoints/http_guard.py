"""What every HTTP request passes first: keys, body size, and a stop for clients that went away."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from sglang.srt.managers.request_state import RequestError

if TYPE_CHECKING:
    from starlette.requests import Request

T = TypeVar("T")
Scope = MutableMapping[str, Any]
AsgiApp = Callable[[Scope, Any, Any], Awaitable[None]]

MAX_BODY_BYTES = 32 << 20
MAX_JSON_DEPTH = 64
OPEN_PATHS = frozenset({"/health"})
ADMIN_PATHS = frozenset({"/flush_cache", "/cache_report"})


class Guard:
    """ASGI middleware: refuses without the right key (401) and bodies that are too long (413).

    An administrative route asks for the admin key where there is one, for the API key otherwise.
    Keys are compared in constant time.
    """

    def __init__(self, app: AsgiApp, api_key: str | None, admin_api_key: str | None) -> None:
        self._app = app
        self._api_key = api_key
        self._admin_api_key = admin_api_key

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Handle one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {key.lower(): value for key, value in scope["headers"]}
        if not self._is_allowed(scope["path"], headers.get(b"authorization", b"")):
            await _send_error(scope, send, 401, "a valid API key is required")
            return
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > MAX_BODY_BYTES:
            await _send_error(scope, send, 413, f"the body may have {MAX_BODY_BYTES} bytes")
            return
        await self._app(scope, _limited(receive), send)

    def _is_allowed(self, path: str, authorization: bytes) -> bool:
        scheme, _, token = authorization.partition(b" ")
        token = token.strip() if scheme.lower() == b"bearer" else b""
        is_admin = _same(token, self._admin_api_key)
        if path in ADMIN_PATHS and self._admin_api_key is not None:
            return is_admin
        if path in OPEN_PATHS or self._api_key is None:
            return True
        return _same(token, self._api_key) or is_admin


def error_body(path: str, status: int, message: str, param: str | None = None) -> dict[str, Any]:
    """An error in OpenAI's shape on /v1 routes, in SGLang's elsewhere."""
    if not path.startswith("/v1/"):
        return {"error": {"message": message}}
    kinds = {401: "authentication_error", 404: "not_found_error", 503: "service_unavailable_error"}
    kind = kinds.get(status, "invalid_request_error" if status < 500 else "server_error")
    code = "invalid_api_key" if status == 401 else None
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def check_json_depth(value: Any, limit: int = MAX_JSON_DEPTH) -> None:
    """Raise RequestError when lists and objects are nested deeper than `limit`."""
    level = [value]
    for _ in range(limit):
        level = [
            child
            for parent in level
            for child in (parent.values() if isinstance(parent, dict) else parent)
            if isinstance(child, (dict, list))
        ]
        if not level:
            return
    raise RequestError(f"the body is nested deeper than {limit} levels")


async def read_json(request: Request) -> dict[str, Any]:
    """The body as a JSON object. Raises RequestError when it is none or nested too deep.

    The content type must say JSON (415 otherwise): a page in a browser can post any other type to
    a server on the same machine without asking it first.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise RequestError(
            f"Content-Type must be application/json, got {kind or 'none'}", 415, "Content-Type"
        )
    body = await request.body()
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise RequestError(f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise RequestError("the body must be a JSON object")
    check_json_depth(value)
    return value


async def unless_disconnected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Run `work`, but cancel it when the client goes away.

    Raises RequestError 499 then; nobody reads it.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_wait_disconnect(request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise RequestError("the client went away", 499)
        return task.result()
    finally:
        gone.cancel()
        if not task.done():
            task.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _wait_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _same(token: bytes, key: str | None) -> bool:
    return key is not None and hmac.compare_digest(token, key.encode())


def _limited(receive: Any) -> Any:
    """`receive` that counts: a chunked body has no length to check beforehand."""
    num_bytes = 0

    async def counted() -> Any:
        nonlocal num_bytes
        message = await receive()
        num_bytes += len(message.get("body", b""))
        if num_bytes > MAX_BODY_BYTES:
            raise RequestError(f"the body may have {MAX_BODY_BYTES} bytes", 413)
        return message

    return counted


async def _send_error(scope: Scope, send: Any, status: int, message: str) -> None:
    body = msgspec.json.encode(error_body(scope["path"], status, message))
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
