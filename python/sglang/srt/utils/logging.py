"""Log format of all processes of a server."""

from __future__ import annotations

import logging


def configure_logging(level: str, prefix: str = "") -> None:
    """Send records of `level` and above to stderr as `[time prefix] message`."""
    label = f" {prefix}" if prefix else ""
    logging.basicConfig(
        level=level.upper(),
        format=f"[%(asctime)s{label}] %(message)s",
        datefmt="%Y-%m-%d %H:%M:%S",
        force=True,
    )
    # Chatty libraries whose info lines are of no use to whoever runs a server.
    for name in ("httpx", "httpcore", "asyncio", "urllib3", "filelock", "uvicorn"):
        logging.getLogger(name).setLevel(logging.WARNING)
