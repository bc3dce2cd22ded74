"""`sglang.Engine`: the same server without HTTP, for scripts and notebooks.

The runtime lives in an event loop of its own, in a thread of its own: that works under a notebook,
which has a loop already, and from a script without a main guard, since the stage processes run
their own program instead of the script again.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any, TypeVar

from sglang.srt.entrypoints import serving_native
from sglang.srt.entrypoints.launch import load_model_facts, make_runtime
from sglang.srt.entrypoints.runtime import Runtime
from sglang.srt.entrypoints.stage_processes import StageProcesses
from sglang.srt.managers.request_state import RequestError
from sglang.srt.managers.transport import private_folder
from sglang.srt.server_args import ServerArgs
from sglang.srt.utils.logging import configure_logging

T = TypeVar("T")

_END = object()


class Engine:
    """A model with its stage processes. Use it as a context manager, or call `shutdown`.

    Keyword arguments are the fields of `ServerArgs`. `generate` takes what `/generate` takes and
    answers the same dictionaries.
    """

    def __init__(self, **server_args: Any) -> None:
        """Start the stages and wait until they answer.

        Raises ServerArgsError for a bad argument, LaunchError when the model can't be served.
        """
        self.server_args = ServerArgs.from_dict({"log_level": "error", **server_args}).resolve()
        if not logging.getLogger().handlers:  # a script's or notebook's own set-up stays
            configure_logging(self.server_args.log_level)
        model = load_model_facts(self.server_args)
        self._cleanup = contextlib.ExitStack()
        folder = self._cleanup.enter_context(private_folder())
        stages = StageProcesses(self.server_args, folder)
        self._cleanup.callback(stages.kill)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="engine", daemon=True)
        self._thread.start()
        self._is_closed = False
        atexit.register(self.shutdown)
        try:
            stages.start()
            self._runtime: Runtime = self._run(_make(self.server_args, model, stages))
            self._run(self._runtime.start())
        except BaseException:
            self.shutdown()
            raise

    def generate(
        self,
        prompt: str | list[str] | None = None,
        sampling_params: dict[str, Any] | list[dict[str, Any]] | None = None,
        input_ids: list[int] | list[list[int]] | None = None,
        stream: bool = False,
        **fields: Any,
    ) -> Any:
        """The answer: a dictionary, a list of them for a batch, an iterator with `stream`.

        Raises ValueError for bad input, RuntimeError when the runtime failed.
        """
        body = _body(prompt, sampling_params, input_ids, fields)
        if stream:
            return self._iterate({**body, "stream": True})
        return self._run(_checked(serving_native.generate(self._runtime.manager, body)))

    async def async_generate(
        self,
        prompt: str | list[str] | None = None,
        sampling_params: dict[str, Any] | list[dict[str, Any]] | None = None,
        input_ids: list[int] | list[list[int]] | None = None,
        stream: bool = False,
        **fields: Any,
    ) -> Any:
        """`generate` for a caller in any event loop; with `stream` an async iterator.

        Cancelling the call aborts its requests.
        """
        body = _body(prompt, sampling_params, input_ids, fields)
        if stream:
            return self._async_iterate({**body, "stream": True})
        return await self._await(_checked(serving_native.generate(self._runtime.manager, body)))

    def flush_cache(self) -> bool:
        """Empty the prefix cache; False while requests run."""
        return bool(self._run(self._runtime.manager.control("flush_cache")).success)

    def get_server_info(self) -> dict[str, Any]:
        """Arguments, stage reports, pools and chunking, as `/server_info` shows them."""
        reply = self._run(self._runtime.manager.control("server_info"))
        reports = [report for _, report in sorted(self._runtime.stage_reports.items())]
        return {**self.server_args.public_dict(), "stages": reports, **reply.body}

    def shutdown(self) -> None:
        """End the stages. May be called more than once."""
        if self._is_closed:
            return
        self._is_closed = True
        atexit.unregister(self.shutdown)
        if hasattr(self, "_runtime"):
            self._runtime.refuse_requests("the engine is shut down")
            self._run(self._runtime.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._cleanup.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def _submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        future = self._submit(work)
        try:
            return future.result()
        except BaseException:  # a Ctrl-C in the caller's thread ends the work as well
            future.cancel()
            raise

    async def _await(self, work: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(self._submit(work))

    def _iterate(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        chunks = serving_native.generate_stream(self._runtime.manager, body)
        try:
            while (chunk := self._run(_checked(_next(chunks)))) is not _END:
                yield chunk
        finally:
            self._run(chunks.aclose())

    async def _async_iterate(self, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        chunks = serving_native.generate_stream(self._runtime.manager, body)
        try:
            while (chunk := await self._await(_checked(_next(chunks)))) is not _END:
                yield chunk
        finally:
            await self._await(chunks.aclose())


async def _make(server_args: ServerArgs, model: Any, stages: StageProcesses) -> Runtime:
    return make_runtime(server_args, model, stages)


async def _next(chunks: AsyncIterator[Any]) -> Any:
    return await anext(chunks, _END)


async def _checked(work: Coroutine[Any, Any, T]) -> T:
    """An HTTP status means nothing here: bad input is a ValueError, the rest a RuntimeError."""
    try:
        return await work
    except RequestError as error:
        kind = ValueError if error.status == 400 else RuntimeError
        raise kind(error.message) from None


def _body(
    prompt: str | list[str] | None,
    sampling_params: dict[str, Any] | list[dict[str, Any]] | None,
    input_ids: list[int] | list[list[int]] | None,
    fields: dict[str, Any],
) -> dict[str, Any]:
    """The body that `/generate` would get."""
    body = {"text": prompt, "input_ids": input_ids, "sampling_params": sampling_params, **fields}
    return {name: value for name, value in body.items() if value is not None}
