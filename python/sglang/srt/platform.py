"""The device seam: all that differs between a CPU and a GPU outside of kernels."""

from __future__ import annotations

import contextlib
import ctypes
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

_SHORT_NAMES = {"half": "float16", "float": "float32"}
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3  # malloc.h
_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Platform:
    """One stage's device: "cpu" or "cuda:<index>"."""

    device: str

    @classmethod
    def create(cls, requested: str, pp_rank: int, index: int | None = None) -> Platform:
        """The device of a stage. `requested` is `--device`: auto, cpu or cuda.

        index: the GPU of this machine that is the stage's, its rank when all stages are here.
        Raises ValueError when there is none.
        """
        index = pp_rank if index is None else index
        has_cuda = torch.cuda.is_available()
        if requested == "auto":
            requested = "cuda" if has_cuda and torch.cuda.device_count() > index else "cpu"
        if requested == "cpu":
            return cls("cpu")
        if requested != "cuda":
            raise ValueError(f"--device must be auto, cpu or cuda, got {requested}")
        if not has_cuda or torch.cuda.device_count() <= index:
            count = torch.cuda.device_count() if has_cuda else 0
            raise ValueError(f"--device cuda: stage {pp_rank} needs GPU {index}, {count} are there")
        torch.cuda.set_device(index)
        return cls(f"cuda:{index}")

    def prepare_process(self) -> None:
        """Settle what holds for the whole process, before it computes. May be called again.

        On a CPU with glibc, freed memory stays with the process. A step frees and takes the same
        tensors as the one before; given back to the system, their pages would be zeroed each time,
        which can cost as much as the arithmetic.
        """
        if self.kind == "cpu":
            with contextlib.suppress(OSError, AttributeError):  # another C library
                set_option = ctypes.CDLL(None).mallopt
                set_option(_M_MMAP_THRESHOLD, 32 * 2**20)
                set_option(_M_TRIM_THRESHOLD, 512 * 2**20)
                set_option(_M_TOP_PAD, 16 * 2**20)

    @property
    def kind(self) -> str:
        """ "cpu" or "cuda": the key of the op table."""
        return self.device.split(":")[0]

    def free_memory_bytes(self) -> int:
        """Memory that caches may be sized by; on a CPU within the container's limit, if any."""
        if self.kind == "cpu":
            return min(int(psutil.virtual_memory().available), _container_memory_bytes())
        return int(torch.cuda.mem_get_info()[0])

    def compute_dtype(self, dtype: str) -> torch.dtype:
        """The dtype that a stage computes in; `dtype` is `--dtype`.

        On a CPU this is always fp32: the kernels there have no use for 16-bit matrix units, and
        without them fp32 is the faster choice as well as the exact one. Raises ValueError on a name
        that is no floating point type.
        """
        name = _SHORT_NAMES.get(dtype, dtype)
        found = torch.bfloat16 if name == "auto" else getattr(torch, name, None)
        if not isinstance(found, torch.dtype) or not found.is_floating_point:
            raise ValueError(f"--dtype {dtype} is not a floating point type")
        return torch.float32 if self.kind == "cpu" else found

    def matrix_dtype(self, dtype: str) -> torch.dtype:
        """The dtype that large matrices are stored in; `dtype` is `--dtype`.

        On a CPU "bfloat16" halves their memory, which is what decoding waits for, while all
        arithmetic stays in fp32. Raises ValueError as `compute_dtype`.
        """
        computed = self.compute_dtype(dtype)
        return torch.bfloat16 if dtype == "bfloat16" else computed

    def synchronize(self) -> None:
        """Wait for all work given to the device."""
        if self.kind == "cuda":
            torch.cuda.synchronize()


def _container_memory_bytes() -> int:
    """What the container's memory limit (cgroup v2) leaves, or a number beyond any memory.

    Files that were read and may be dropped do not count as used.
    """
    try:
        limit = int((_CGROUP / "memory.max").read_text())
        used = int((_CGROUP / "memory.current").read_text())
        fields = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
        return max(0, limit - used + int(fields.get("inactive_file", 0)))
    except (OSError, ValueError):  # no such file, or the limit is "max"
        return 2**63
