"""How the stages find each other."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from datetime import timedelta
from urllib.parse import urlparse

import torch
import torch.distributed as dist

# Stages wait for each other's messages as long as the server is idle. Hung peers are the
# watchdog's business, which can say what is awaited; a gloo time-out could not.
_NEVER = timedelta(days=365)


class StageMissing(RuntimeError):
    """A stage did not join in time; the message names it."""


@dataclass(frozen=True)
class PipelineGroup:
    """This process's place in the pipeline. All communication runs over the default gloo group."""

    pp_rank: int
    pp_size: int

    @property
    def is_first(self) -> bool:
        """Stage 0, which decides."""
        return self.pp_rank == 0

    @property
    def is_last(self) -> bool:
        """The stage that samples."""
        return self.pp_rank == self.pp_size - 1

    def agree_min(self, values: list[int]) -> list[int]:
        """Element-wise minimum over all stages; every stage gets the same answer."""
        if self.pp_size == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.int64)
        dist.all_reduce(tensor, op=dist.ReduceOp.MIN)
        return [int(v) for v in tensor]

    def barrier(self) -> None:
        """Wait until all stages are here."""
        if self.pp_size > 1:
            self.agree_min([0])

    def close(self) -> None:
        """Leave the group."""
        if self.pp_size > 1 and dist.is_initialized():
            dist.destroy_process_group()


def init_pipeline_group(
    pp_rank: int, pp_size: int, init_method: str, timeout_s: float
) -> PipelineGroup:
    """Meet the other stages at `init_method` ("tcp://host:port"; stage 0 listens there).

    Raises StageMissing naming the first stage that has not come after `timeout_s` seconds.
    """
    if pp_size == 1:
        return PipelineGroup(0, 1)
    address = urlparse(init_method)
    assert address.hostname is not None and address.port is not None, init_method
    listen_fd: int | None = None
    if address.hostname in ("127.0.0.1", "localhost", "::1"):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", _loopback_interface())
        if pp_rank == 0:
            listen_fd = _bind_loopback(address.hostname, address.port)
    try:
        store = dist.TCPStore(  # type: ignore[attr-defined]
            address.hostname,
            address.port,
            world_size=pp_size,
            is_master=pp_rank == 0,
            timeout=timedelta(seconds=timeout_s),
            wait_for_workers=False,
            master_listen_fd=listen_fd,
        )
    except (RuntimeError, dist.DistError) as error:
        raise StageMissing(
            f"stage {pp_rank} could not reach stage 0 at {init_method} within "
            f"{timeout_s:g} s (--dist-timeout): {str(error).splitlines()[0]}"
        ) from error
    _await_all(store, pp_rank, pp_size, timeout_s)
    dist.init_process_group(
        "gloo",
        store=dist.PrefixStore("pipeline", store),
        rank=pp_rank,
        world_size=pp_size,
        timeout=_NEVER,
    )
    return PipelineGroup(pp_rank, pp_size)


def _await_all(store: dist.TCPStore, pp_rank: int, pp_size: int, timeout_s: float) -> None:
    store.set(f"stage{pp_rank}", "here")
    for rank in range(pp_size):
        try:
            store.wait([f"stage{rank}"], timedelta(seconds=timeout_s))
        except (RuntimeError, dist.DistError) as error:
            raise StageMissing(
                f"stage {rank} of {pp_size} did not join within {timeout_s:g} s (--dist-timeout)"
            ) from error


def _bind_loopback(host: str, port: int) -> int:
    """A socket for the store to listen on: its own would listen on every interface.

    The store owns the descriptor and closes it. Raises StageMissing when the port is taken.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            raise StageMissing(f"stage 0 cannot listen on {host}:{port}: {error}") from error
        return listener.detach()


def _loopback_interface() -> str:
    return "lo" if os.path.exists("/sys/class/net/lo") else "lo0"
