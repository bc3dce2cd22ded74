"""How the stages find each other."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from urllib.parse import urlparse

import psutil
import torch
import torch.distributed as dist

# Stages wait for each other's messages as long as the server is idle. Hung peers are the
# watchdog's business, which can say what is awaited; a gloo time-out could not.
_NEVER = timedelta(days=365)


class StageMissing(RuntimeError):
    """A stage did not join in time; the message names it."""


class StagesDisagree(ValueError):
    """Two stages were started with different settings; the message names the first of them."""


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
    pp_rank: int,
    pp_size: int,
    init_method: str,
    timeout_s: float,
    settings: Mapping[str, object] | None = None,
) -> PipelineGroup:
    """Meet the other stages at `init_method` ("tcp://host:port"; stage 0 listens there).

    settings: what all stages must have been started with, by flag. Gloo's interface is the one
    that leads to stage 0, unless `GLOO_SOCKET_IFNAME` says otherwise.

    Raises StageMissing naming the first stage that has not come after `timeout_s` seconds, and
    StagesDisagree naming the first setting that differs from stage 0's.
    """
    if pp_size == 1:
        return PipelineGroup(0, 1)
    host, port = _host_and_port(init_method)
    interface = interface_towards(host)
    if interface is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    listen_fd = _bind_loopback(host, port) if pp_rank == 0 and _is_loopback(host) else None
    try:
        store = dist.TCPStore(  # type: ignore[attr-defined]
            host,
            port,
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
    _await_all(store, pp_rank, pp_size, timeout_s, settings or {})
    dist.init_process_group(
        "gloo",
        store=dist.PrefixStore("pipeline", store),
        rank=pp_rank,
        world_size=pp_size,
        timeout=_NEVER,
    )
    return PipelineGroup(pp_rank, pp_size)


def connect_to_store(init_method: str, timeout_s: float) -> dist.TCPStore:
    """A further connection to the store of stage 0. Raises an error of torch.distributed."""
    host, port = _host_and_port(init_method)
    timeout = timedelta(seconds=timeout_s)
    return dist.TCPStore(  # type: ignore[attr-defined]
        host, port, is_master=False, timeout=timeout, wait_for_workers=False
    )


def interface_towards(host: str) -> str | None:
    """The network interface over which `host` is reached; None when that is not known."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)  # sends nothing: the system looks up the way
            own = probe.getsockname()[0]
    except OSError:
        return None
    for name, addresses in psutil.net_if_addrs().items():
        if any(entry.address.partition("%")[0] == own for entry in addresses):
            return name
    return None


def _host_and_port(init_method: str) -> tuple[str, int]:
    address = urlparse(init_method)
    assert address.hostname is not None and address.port is not None, init_method
    return address.hostname, address.port


def _is_loopback(host: str) -> bool:
    return host in ("127.0.0.1", "localhost", "::1")


def _await_all(
    store: dist.TCPStore,
    pp_rank: int,
    pp_size: int,
    timeout_s: float,
    settings: Mapping[str, object],
) -> None:
    own = json.loads(json.dumps(dict(settings)))
    store.set(f"stage{pp_rank}", json.dumps(own))
    for rank in range(pp_size):
        try:
            store.wait([f"stage{rank}"], timedelta(seconds=timeout_s))
        except (RuntimeError, dist.DistError) as error:
            raise StageMissing(
                f"stage {rank} of {pp_size} did not join within {timeout_s:g} s (--dist-timeout)"
            ) from error
    # Every stage looks at all of them, so that all end with the same words.
    all_settings = [json.loads(store.get(f"stage{rank}")) for rank in range(pp_size)]
    # Stage 0 holds the store; it stays until everyone has read.
    store.add("read", 1)
    while pp_rank == 0 and store.add("read", 0) < pp_size:
        time.sleep(0.01)
    _check_same(all_settings)


def _check_same(all_settings: list[dict[str, object]]) -> None:
    first = all_settings[0]
    for rank, other in enumerate(all_settings):
        for name in first:
            if other.get(name) != first[name]:
                raise StagesDisagree(
                    f"stage {rank} was started with {name} {other.get(name)}, stage 0 with "
                    f"{first[name]}: all machines need the same"
                )


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
