"""Start of the whole server, its end, and everything that can go wrong on the way.

The order matters for the time to the first answer: arguments, model configuration and port are
checked first, the stages start next, and the front end imports its libraries while they load.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import signal
import socket
import sys
from typing import TYPE_CHECKING, Any

from sglang.srt.entrypoints.runtime import LaunchError, Runtime
from sglang.srt.entrypoints.stage_processes import StageProcesses
from sglang.srt.managers.tokenizer_manager import ModelFacts, RequestObserver
from sglang.srt.managers.transport import (
    AsyncZmqReceiver,
    ZmqSender,
    private_folder,
    scheduler_messages,
)
from sglang.srt.server_args import ServerArgs
from sglang.srt.utils.hf_tokenizer import TokenizerError
from sglang.srt.utils.logging import configure_logging

if TYPE_CHECKING:
    import uvicorn

logger = logging.getLogger(__name__)

DRAIN_SECONDS = 5.0


def launch_server(server_args: ServerArgs) -> int:
    """Serve until a signal (returns 0) or a failure (returns 1, after one line on stderr)."""
    configure_logging(server_args.log_level)
    signal.signal(signal.SIGTERM, _exit_on_signal)  # until the event loop takes over
    try:
        model = load_model_facts(server_args)
        http_socket = bind_http_socket(server_args) if server_args.node_rank == 0 else None
    except LaunchError as error:
        return _report(str(error))
    warn_if_exposed(server_args)
    with private_folder() as folder:
        stages = StageProcesses(server_args, folder)
        try:
            stages.start()
            return asyncio.run(_serve(server_args, model, stages, http_socket))
        except KeyboardInterrupt:
            return 0
        finally:
            stages.kill()


def load_model_facts(server_args: ServerArgs) -> ModelFacts:
    """Read the model's configuration. Raises LaunchError for a model that can't be served."""
    from sglang.srt.models.config import ModelConfig

    try:
        model = ModelConfig.from_path(
            server_args.model_path,
            context_length=server_args.context_length,
            dtype=server_args.dtype,
        )
    except (ValueError, OSError) as error:
        raise LaunchError(" ".join(str(error).split())) from error
    if server_args.pp_size > model.num_layers:
        raise LaunchError(
            f"--pp-size {server_args.pp_size} is more than the model's {model.num_layers} layers"
        )
    return model


def bind_http_socket(server_args: ServerArgs) -> socket.socket:
    """Take the HTTP port before anything is loaded. Raises LaunchError when it is not free."""
    host, port = server_args.host, server_args.port
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        http_socket = socket.socket(family, kind)
        http_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        http_socket.bind(address)
        # Listening now, so that no other server can bind the port while this one loads.
        http_socket.listen(2048)
    except OSError as error:
        raise LaunchError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    return http_socket


def warn_if_exposed(server_args: ServerArgs) -> None:
    """Warn when other machines can reach the server and no key is asked for."""
    try:
        is_local = ipaddress.ip_address(server_args.host).is_loopback
    except ValueError:
        is_local = server_args.host == "localhost"
    if not is_local and not server_args.api_key:
        logger.warning(
            "listening on %s without --api-key: whoever reaches it can use the server",
            server_args.host,
        )


def make_runtime(
    server_args: ServerArgs,
    model: ModelFacts,
    stages: StageProcesses,
    observer: RequestObserver | None = None,
) -> Runtime:
    """A runtime over the ipc sockets of `stages`; call it in the event loop that will run it."""
    return Runtime(
        server_args,
        model,
        stages,
        ZmqSender(stages.to_scheduler, linger_ms=0),  # closed when nobody is left to receive
        AsyncZmqReceiver(stages.to_frontend, scheduler_messages()),
        observer,
    )


class _Signals:
    """SIGINT and SIGTERM, counted: the first asks for an orderly end, the second for a quick."""

    def __init__(self) -> None:
        self.count = 0
        self.first = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal)

    def _on_signal(self) -> None:
        self.count += 1
        self.first.set()


async def _serve(
    server_args: ServerArgs,
    model: ModelFacts,
    stages: StageProcesses,
    http_socket: socket.socket | None,
) -> int:
    signals = _Signals()
    from sglang.srt.entrypoints.metrics import FrontendMetrics

    metrics = FrontendMetrics(server_args) if server_args.enable_metrics else None
    runtime = make_runtime(server_args, model, stages, metrics)
    server: uvicorn.Server | None = None
    tasks: list[asyncio.Task[Any]] = []
    if http_socket is not None:
        from sglang.srt.entrypoints.http_server import create_app, make_http_server

        server = make_http_server(create_app(runtime, metrics))
        tasks.append(asyncio.create_task(server.serve(sockets=[http_socket])))
    try:
        status = await _run(runtime, signals)
    finally:
        if server is not None and runtime.failure is None:
            server.should_exit = True  # after a failure /health says 503 until the stages are gone
        await runtime.drain(DRAIN_SECONDS, lambda: signals.count > 1)
        await runtime.stop(in_order=signals.count < 2)
        if server is not None:
            server.should_exit = True
            await _end_http(server, tasks[0])
    return status


async def _run(runtime: Runtime, signals: _Signals) -> int:
    """Start, then wait for a signal or a failure; returns the exit status."""
    stop = asyncio.create_task(signals.first.wait())
    start = asyncio.create_task(runtime.start())
    failed = asyncio.create_task(runtime.wait_failed())
    ended = asyncio.create_task(runtime.wait_ended())
    try:
        await asyncio.wait((start, stop), return_when=asyncio.FIRST_COMPLETED)
        if start.done():
            start.result()
            logger.info("The server is fired up and ready to roll!")
            await asyncio.wait((stop, failed, ended), return_when=asyncio.FIRST_COMPLETED)
        if failed.done():
            return _report(failed.result())
        logger.info("the first machine ended" if ended.done() else "shutting down")
        runtime.refuse_requests("the server is shutting down")
        return 0
    except (LaunchError, TokenizerError) as error:
        runtime.fail(str(error))
        return _report(str(error))
    finally:
        tasks = (stop, start, failed, ended)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _end_http(server: uvicorn.Server, task: asyncio.Task[Any]) -> None:
    """Connections that are still open after two seconds are cut."""
    done, _ = await asyncio.wait((task,), timeout=2.0)
    if not done:
        server.force_exit = True
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait((task,), timeout=2.0)


def _report(message: str) -> int:
    print(f"launch_server: error: {message}", file=sys.stderr, flush=True)
    return 1


def _exit_on_signal(_number: int, _frame: Any) -> None:
    # As an exception, so that the stages are ended on the way out.
    raise KeyboardInterrupt
