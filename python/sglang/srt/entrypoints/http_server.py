"""HTTP routes. They read JSON, call the serving modules and word errors; nothing else."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from typing import Any

import msgspec
import uvicorn
from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

import sglang
from sglang.srt.entrypoints import admin_api, serving_native
from sglang.srt.entrypoints.http_guard import Guard, error_body, read_json, unless_disconnected
from sglang.srt.entrypoints.metrics import FrontendMetrics
from sglang.srt.entrypoints.openai import serving_chat, serving_completions
from sglang.srt.entrypoints.openapi_schema import describe_bodies
from sglang.srt.entrypoints.runtime import Runtime
from sglang.srt.entrypoints.streaming import event_response
from sglang.srt.managers.request_state import RequestError

Answer = Awaitable[Any]
Chunks = AsyncGenerator[dict[str, Any], None]
_RETRY_AFTER_SECONDS = "1"
# Clients drop idle connections after 5 s (httpx, and with it OpenAI's client) to 60 s. A server
# that does it at the same time closes some on which a request is under way.
_KEEP_ALIVE_SECONDS = 75


def json_response(value: Any, status: int = 200) -> Response:
    """`value` as JSON."""
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def create_app(runtime: Runtime, metrics: FrontendMetrics | None = None) -> FastAPI:
    """The ASGI application over a runtime that may still be starting."""
    app = FastAPI(title="sglang", version=sglang.__version__, docs_url=None, redoc_url=None)
    args = runtime.server_args
    app.add_middleware(Guard, api_key=args.api_key, admin_api_key=args.admin_api_key)
    if args.cors_allow_origins:  # outermost: a browser's preflight carries no key
        origins = [origin.strip() for origin in args.cors_allow_origins.split(",")]
        app.add_middleware(
            CORSMiddleware, allow_origins=origins, allow_methods=["*"], allow_headers=["*"]
        )
    _add_error_handlers(app)
    _add_generation_routes(app, runtime)
    admin_api.add_health_routes(app, runtime)
    admin_api.add_info_routes(app, runtime)
    admin_api.add_tokenizer_routes(app, runtime)
    admin_api.add_control_routes(app, runtime)
    if metrics is not None:

        @app.get("/metrics")
        async def serve_metrics() -> Response:
            media_type = "text/plain; version=0.0.4; charset=utf-8"
            return Response(metrics.render(runtime), media_type=media_type)

    describe_bodies(app)
    return app


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: the launcher decides what a signal means."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals alone."""
        yield


def make_http_server(app: FastAPI) -> uvicorn.Server:
    """A server for sockets that are bound already."""
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
    )
    return _Server(config)


def _add_generation_routes(app: FastAPI, runtime: Runtime) -> None:
    args = runtime.server_args
    model_name = args.served_model_name or args.model_path
    chat = serving_chat.ChatSettings(model_name, args.tool_call_parser, args.reasoning_parser)

    @app.post("/generate")
    @app.put("/generate", include_in_schema=False)
    async def generate(request: Request) -> Response:
        return await _respond(
            request,
            lambda body: serving_native.generate(runtime.manager, body),
            lambda body: serving_native.generate_stream(runtime.manager, body),
        )

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        return await _respond(
            request,
            lambda body: serving_completions.complete(runtime.manager, body, model_name),
            lambda body: serving_completions.complete_stream(runtime.manager, body, model_name),
        )

    @app.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        return await _respond(
            request,
            lambda body: serving_chat.chat(runtime.manager, body, chat),
            lambda body: serving_chat.chat_stream(runtime.manager, body, chat),
        )

    @app.get("/v1/models")
    async def models() -> Response:
        return json_response({"object": "list", "data": [_model_card(runtime, model_name)]})

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> Response:
        if name != model_name:
            raise RequestError(f"the model {name} does not exist", 404, "model")
        return json_response(_model_card(runtime, model_name))


async def _respond(
    request: Request,
    answer: Callable[[dict[str, Any]], Any],
    stream: Callable[[dict[str, Any]], Chunks],
) -> Response:
    body = await read_json(request)
    if body.get("stream"):
        return await event_response(request, stream(body))
    return json_response(await unless_disconnected(request, answer(body)))


def _model_card(runtime: Runtime, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "sglang",
        "root": name,
        "parent": None,
        "max_model_len": runtime.model.context_len,
    }


def _add_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(RequestError)
    async def refused(request: Request, error: RequestError) -> Response:
        body = error_body(request.url.path, error.status, error.message, error.param)
        response = json_response(body, error.status)
        if error.status == 503:
            response.headers["Retry-After"] = _RETRY_AFTER_SECONDS
        return response

    @app.exception_handler(HTTPException)
    async def not_routed(request: Request, error: HTTPException) -> Response:
        body = error_body(request.url.path, error.status_code, str(error.detail))
        response = json_response(body, error.status_code)
        response.headers.update(error.headers or {})
        return response

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> Response:
        # The log has the traceback (starlette raises it again); the client learns no internals.
        return json_response(error_body(request.url.path, 500, "internal error"), 500)
