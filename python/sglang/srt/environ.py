"""Every SGLANG_* environment variable: name, type, default, meaning."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


class EnvVar(Generic[T]):
    """One typed variable. `get` reads the environment each time, so that tests can set it."""

    def __init__(self, name: str, default: T, parse: Callable[[str], T], meaning: str) -> None:
        self.name = name
        self.default = default
        self.meaning = meaning
        self._parse = parse

    def get(self) -> T:
        """The value, or the default when unset or empty. Raises ValueError naming the variable."""
        raw = os.environ.get(self.name, "").strip()
        if not raw:
            return self.default
        try:
            return self._parse(raw)
        except ValueError as error:
            raise ValueError(f"{self.name}={raw!r}: {error}") from None


def _parse_bool(raw: str) -> bool:
    values = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    if raw.lower() not in values:
        raise ValueError("must be 1 or 0")
    return values[raw.lower()]


def _parse_smooth_factor(raw: str) -> float:
    value = float(raw)
    if not 0.0 < value <= 1.0:
        raise ValueError("must be in (0, 1]")
    return value


def _parse_positive(raw: str) -> float:
    value = float(raw)
    if not value > 0.0:
        raise ValueError("must be a positive number of seconds")
    return value


def _parse_partition(raw: str) -> str:
    if not all(part.strip().isdigit() and int(part) > 0 for part in raw.split(",")):
        raise ValueError("must be layer counts such as 5,5,6")
    return raw


def _parse_cpu_kernels(raw: str) -> str:
    if raw not in ("auto", "native", "reference"):
        raise ValueError("must be auto, native or reference")
    return raw


SGLANG_CHECK_MEMORY = EnvVar(
    "SGLANG_CHECK_MEMORY", False, _parse_bool, "run both leak checks after every scheduler step"
)
SGLANG_DYNAMIC_CHUNKING_SMOOTH_FACTOR = EnvVar(
    "SGLANG_DYNAMIC_CHUNKING_SMOOTH_FACTOR",
    0.75,
    _parse_smooth_factor,
    "how far a predicted chunk size moves from the static one: 1 follows the model",
)
SGLANG_PP_LAYER_PARTITION = EnvVar(
    "SGLANG_PP_LAYER_PARTITION", "", _parse_partition, "layers of each stage, e.g. 5,5,6"
)
SGLANG_REQ_RUNNING_TIMEOUT = EnvVar(
    "SGLANG_REQ_RUNNING_TIMEOUT",
    0.0,
    _parse_positive,
    "seconds after which an unfinished request is aborted and answered with 504; unset: never",
)
SGLANG_HEALTH_CHECK_TIMEOUT = EnvVar(
    "SGLANG_HEALTH_CHECK_TIMEOUT",
    20.0,
    _parse_positive,
    "seconds that /health_generate waits for its one token",
)
SGLANG_CPU_KERNELS = EnvVar(
    "SGLANG_CPU_KERNELS",
    "auto",
    _parse_cpu_kernels,
    "what computes on a CPU: native (the compiled kernels), reference (torch), auto (the first "
    "that works)",
)

ALL_VARIABLES: tuple[EnvVar[bool] | EnvVar[float] | EnvVar[str], ...] = (
    SGLANG_CHECK_MEMORY,
    SGLANG_DYNAMIC_CHUNKING_SMOOTH_FACTOR,
    SGLANG_PP_LAYER_PARTITION,
    SGLANG_REQ_RUNNING_TIMEOUT,
    SGLANG_HEALTH_CHECK_TIMEOUT,
    SGLANG_CPU_KERNELS,
)


def check_environment() -> None:
    """Raise ValueError for the first SGLANG_* variable that holds a value we can't use."""
    for variable in ALL_VARIABLES:
        variable.get()


def check_memory() -> bool:
    """Whether both leak checks run after every scheduler step."""
    return SGLANG_CHECK_MEMORY.get()


def dynamic_chunking_smooth_factor() -> float:
    """The smooth factor of dynamic chunking, in (0, 1]."""
    return SGLANG_DYNAMIC_CHUNKING_SMOOTH_FACTOR.get()


def pp_layer_partition() -> str | None:
    """Layers of each stage as the user gives them ("5,3"), or None for an even split."""
    return SGLANG_PP_LAYER_PARTITION.get() or None


def cpu_kernels() -> str:
    """What computes on a CPU: "auto", "native" or "reference"."""
    return SGLANG_CPU_KERNELS.get()


@dataclass(frozen=True)
class TorchrunPlace:
    """A process's place among those that `torchrun` started."""

    world_size: int
    rank: int
    local_rank: int
    master_addr: str
    master_port: int


def torchrun_place() -> TorchrunPlace | None:
    """What `torchrun` says in the environment, or None when this is not its doing."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    return TorchrunPlace(
        int(os.environ["WORLD_SIZE"]),
        int(os.environ["RANK"]),
        int(os.environ["LOCAL_RANK"]),
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
    )
