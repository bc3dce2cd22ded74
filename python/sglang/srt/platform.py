"""The device seam: all that differs between a CPU and a GPU outside of kernels."""

from __future__ import annotations

from dataclasses import dataclass

import psutil
import torch


@dataclass(frozen=True)
class Platform:
    """One stage's device: "cpu" or "cuda:<index>"."""

    device: str

    @classmethod
    def create(cls, requested: str, pp_rank: int) -> Platform:
        """The device of a stage. `requested` is `--device`: auto, cpu or cuda.

        With cuda, stage k of a host uses GPU k. Raises ValueError when there is none.
        """
        has_cuda = torch.cuda.is_available()
        if requested == "auto":
            requested = "cuda" if has_cuda and torch.cuda.device_count() > pp_rank else "cpu"
        if requested == "cpu":
            return cls("cpu")
        if not has_cuda or torch.cuda.device_count() <= pp_rank:
            count = torch.cuda.device_count() if has_cuda else 0
            raise ValueError(
                f"--device cuda: stage {pp_rank} needs GPU {pp_rank}, {count} are there"
            )
        torch.cuda.set_device(pp_rank)
        return cls(f"cuda:{pp_rank}")

    @property
    def kind(self) -> str:
        """ "cpu" or "cuda": the key of the op table."""
        return self.device.split(":")[0]

    def free_memory_bytes(self) -> int:
        """Memory that caches may be sized by."""
        if self.kind == "cpu":
            return int(psutil.virtual_memory().available)
        return int(torch.cuda.mem_get_info()[0])

    def compute_dtype(self, dtype: str) -> torch.dtype:
        """The dtype that a stage computes in. "auto" and 16-bit types mean fp32 on a CPU.

        Without native 16-bit matrix units (and without the kernels that would use them) fp32 is
        the faster choice on a CPU as well as the exact one.
        """
        if self.kind == "cpu":
            return torch.float32
        names = {"auto": "bfloat16", "half": "float16", "float": "float32"}
        found = getattr(torch, names.get(dtype, dtype))
        assert isinstance(found, torch.dtype)
        return found

    def synchronize(self) -> None:
        """Wait for all work given to the device."""
        if self.kind == "cuda":
            torch.cuda.synchronize()
