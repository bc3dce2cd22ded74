"""Routes around generation: health, what is running, and calls to the scheduler."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

import sglang
from sglang.srt.entrypoints.http_guard import read_json
from sglang.srt.entrypoints.native_protocol import convert, is_batch_of_ids
from sglang.srt.entrypoints.runtime import Runtime
from sglang.srt.environ import SGLANG_HEALTH_CHECK_TIMEOUT
from sglang.srt.managers.request_state import GenerateInput, RequestError
from sglang.srt.managers.tokenizer_manager import ControlOp
from sglang.srt.sampling.sampling_params import SamplingParams


class AbortBody(msgspec.Struct, forbid_unknown_fields=True):
    """Body of `/abort_request`."""

    rid: str | None = None
    abort_all: bool = False
    abort_message: str | None = None


class TokenizeBody(msgspec.Struct, forbid_unknown_fields=True):
    """Body of `/tokenize`."""

    prompt: str | list[str]
    model: str = ""
    add_special_tokens: bool = True


class DetokenizeBody(msgspec.Struct, forbid_unknown_fields=True):
    """Body of `/detokenize`."""

    tokens: list[int | list[int]]
    model: str = ""
    skip_special_tokens: bool = True


def add_health_routes(app: FastAPI, runtime: Runtime) -> None:
    """`/health` tells what the server knows of itself, `/health_generate` tries it out."""

    @app.get("/health")
    async def health() -> Response:
        return Response(status_code=200 if runtime.is_healthy else 503)

    @app.get("/health_generate")
    async def health_generate() -> Response:
        if not runtime.is_healthy:
            return Response(status_code=503)
        params = SamplingParams(max_new_tokens=1, temperature=0.0, ignore_eos=True)
        try:
            async with runtime.manager.submit([GenerateInput(params, input_ids=[0])]) as live:
                await asyncio.wait_for(live[0].result(), SGLANG_HEALTH_CHECK_TIMEOUT.get())
        except (RequestError, asyncio.TimeoutError):
            return Response(status_code=503)
        return Response(status_code=200)


def add_info_routes(app: FastAPI, runtime: Runtime) -> None:
    """What is served, by what, and how busy it is. No keys in any of them."""

    @app.get("/model_info")
    @app.get("/get_model_info", include_in_schema=False)
    async def model_info() -> Response:
        args = runtime.server_args
        return _json(
            {
                "model_path": args.model_path,
                "tokenizer_path": args.tokenizer_path,
                "served_model_name": args.served_model_name,
                "is_generation": True,
                "architectures": [runtime.model.architecture],
                "context_length": runtime.model.context_len,
                "vocab_size": runtime.model.vocab_size,
            }
        )

    @app.get("/server_info")
    @app.get("/get_server_info", include_in_schema=False)
    async def server_info() -> Response:
        manager = runtime.manager
        reply = await manager.control("server_info")
        reports = [report for _, report in sorted(runtime.stage_reports.items())]
        return _json(
            {
                **runtime.server_args.public_dict(),
                "version": sglang.__version__,
                "status": runtime.state,
                "max_req_len": manager.max_req_len,
                "stages": reports,
                **reply.body,
                "internal_states": [reply.body],
            }
        )

    @app.get("/get_load")
    async def get_load() -> Response:
        gauges = runtime.manager.stats.gauges
        num_running = int(gauges.get("num_running_reqs", 0))
        num_waiting = int(gauges.get("num_queue_reqs", 0))
        load = {
            "dp_rank": 0,
            "num_reqs": num_running + num_waiting,
            "num_waiting_reqs": num_waiting,
            "num_tokens": int(gauges.get("num_used_tokens", 0)),
        }
        return _json([load])


def add_tokenizer_routes(app: FastAPI, runtime: Runtime) -> None:
    """Text to tokens and back, as the model sees it."""

    @app.post("/tokenize")
    @app.post("/v1/tokenize", include_in_schema=False)
    async def tokenize(request: Request) -> Response:
        body: TokenizeBody = convert(await read_json(request), TokenizeBody)
        manager = runtime.manager
        texts = [body.prompt] if isinstance(body.prompt, str) else body.prompt
        tokens = [await manager.encode(text, body.add_special_tokens) for text in texts]
        is_single = isinstance(body.prompt, str)
        counts = [len(ids) for ids in tokens]
        return _json(
            {
                "tokens": tokens[0] if is_single else tokens,
                "count": counts[0] if is_single else counts,
                "max_model_len": runtime.model.context_len,
            }
        )

    @app.post("/detokenize")
    @app.post("/v1/detokenize", include_in_schema=False)
    async def detokenize(request: Request) -> Response:
        body: DetokenizeBody = convert(await read_json(request), DetokenizeBody)
        is_batch = is_batch_of_ids("tokens", body.tokens)
        rows: list[Any] = body.tokens if is_batch else [body.tokens]
        for token_id in (token_id for row in rows for token_id in row):
            if not 0 <= token_id < runtime.model.vocab_size:
                raise RequestError(
                    f"tokens must be in [0, {runtime.model.vocab_size}), got {token_id}",
                    param="tokens",
                )
        tokenizer = runtime.manager.tokenizer
        texts = [tokenizer.decode(row, body.skip_special_tokens) for row in rows]
        return _json({"text": texts if is_batch else texts[0]})


def add_control_routes(app: FastAPI, runtime: Runtime) -> None:
    """Calls that change something: abort, and what an administrator may do."""

    @app.post("/abort_request")
    async def abort_request(request: Request) -> Response:
        body: AbortBody = convert(await read_json(request), AbortBody)
        manager = runtime.manager
        if body.abort_all:
            manager.abort_all()
        elif body.rid is None:
            raise RequestError("give rid or abort_all", param="rid")
        else:
            manager.abort(body.rid)
        return Response(status_code=200)

    @app.post("/flush_cache")
    @app.get("/flush_cache", include_in_schema=False)
    async def flush_cache() -> Response:
        return await _control(runtime, "flush_cache", "Cache flushed.")

    @app.get("/cache_report")
    async def cache_report() -> Response:
        reply = await runtime.manager.control("cache_report")
        return _json(reply.body, 200 if reply.success else 400)


async def _control(runtime: Runtime, op: ControlOp, done: str) -> Response:
    reply = await runtime.manager.control(op)
    text = reply.message or (done if reply.success else "refused")
    return Response(text + "\n", 200 if reply.success else 400, media_type="text/plain")


def _json(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")
