"""Two machines on this one: network namespaces joined by a virtual cable that can be cut."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

ADDRESSES = ("10.199.7.1", "10.199.7.2")
_CABLE = "sgl0"

# What a client on the first machine does; the server listens on that machine's loopback alone.
_CLIENT = """
import json, sys, urllib.error, urllib.request
url, body = sys.argv[1:]
request = urllib.request.Request(url, body.encode(), {"Content-Type": "application/json"})
try:
    with urllib.request.urlopen(request, timeout=60) as answer:
        print(json.dumps([answer.status, json.loads(answer.read())]))
except urllib.error.HTTPError as error:
    print(json.dumps([error.code, json.loads(error.read())]))
"""


class TwoHosts:
    """Names of two namespaces, whose interfaces have `ADDRESSES`."""

    def __init__(self) -> None:
        self.names = tuple(f"sgl-{os.getpid()}-{i}" for i in range(2))

    def inside(self, host: int) -> list[str]:
        """The beginning of a command that runs on a host."""
        return ["ip", "netns", "exec", self.names[host]]

    def cut(self) -> None:
        """Pull the cable: nothing arrives any more, and nobody is told.

        Each end sends to a hardware address that nobody has.
        """
        for host, other in ((0, 1), (1, 0)):
            neighbour = f"{ADDRESSES[other]} lladdr 02:00:00:00:00:99 dev {_CABLE}"
            _ip(f"-n {self.names[host]} neigh replace {neighbour} nud permanent")

    def ask(self, url: str, body: dict[str, Any]) -> subprocess.Popen[str]:
        """A client on the first host that posts `body`; `answer` reads what it got."""
        command = [*self.inside(0), sys.executable, "-c", _CLIENT, url, json.dumps(body)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def answer(client: subprocess.Popen[str], seconds: float) -> tuple[int, dict[str, Any]]:
    """HTTP status and JSON that a client got."""
    output, _ = client.communicate(timeout=seconds)
    status, found = json.loads(output)
    return status, found


@contextlib.contextmanager
def two_hosts() -> Iterator[TwoHosts]:
    """Make the two machines, and remove them. Skips the test where the system does not allow it."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and the ip command")
    hosts = TwoHosts()
    try:
        try:
            for name in hosts.names:
                _ip(f"netns add {name}")
            first, second = hosts.names
            peer = f"peer name {_CABLE} netns {second}"
            _ip(f"link add {_CABLE} netns {first} type veth {peer}")
            for name, address in zip(hosts.names, ADDRESSES, strict=True):
                _ip(f"-n {name} address add {address}/24 dev {_CABLE}")
                _ip(f"-n {name} link set {_CABLE} up")
                _ip(f"-n {name} link set lo up")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"this system gives no network namespaces: {error.stderr.strip()}")
        yield hosts
    finally:
        for name in hosts.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def _ip(arguments: str) -> None:
    subprocess.run(["ip", *arguments.split()], check=True, capture_output=True, text=True)
