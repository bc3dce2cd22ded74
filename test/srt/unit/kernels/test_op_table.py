"""The op table and the device seam, on a machine without a GPU."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from sglang.srt import platform as platform_module
from sglang.srt.kernels import registry
from sglang.srt.platform import Platform


@pytest.fixture(autouse=True)
def _table_as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "_TABLE", dict(registry._TABLE))
    monkeypatch.setattr(registry, "_said", set())
    yield


def test_a_device_without_a_kernel_gets_the_reference_and_one_log_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        for index in range(3):
            assert registry.get_op("rms_norm", f"cuda:{index}") is registry.REFERENCE["rms_norm"]
    (line,) = caplog.messages
    assert "rms_norm" in line and "cuda" in line and "reference" in line


def test_a_registered_kernel_serves_its_kind_of_device_only() -> None:
    def kernel() -> None:
        """Stands for a faster one."""

    registry.register_op("cuda", "rms_norm", kernel)
    assert registry.get_op("rms_norm", "cuda:1") is kernel
    assert registry.get_op("rms_norm", "cpu") is not kernel


def test_an_op_without_a_reference_is_refused() -> None:
    with pytest.raises(KeyError, match="no reference"):
        registry.register_op("cuda", "warp_drive", lambda: None)
    with pytest.raises(KeyError):
        registry.get_op("warp_drive", "cuda")


@pytest.mark.parametrize("dtype", ["auto", "bfloat16", "half", "float"])
def test_a_cpu_computes_in_fp32(dtype: str) -> None:
    assert Platform("cpu").compute_dtype(dtype) is torch.float32


def test_the_dtype_of_a_gpu_is_the_one_asked_for() -> None:
    names = {"auto": torch.bfloat16, "half": torch.float16, "float32": torch.float32}
    for name, dtype in names.items():
        assert Platform("cuda:0").compute_dtype(name) is dtype
    for device in ("cpu", "cuda:0"):
        for name in ("int8", "bool", "load", "nonsense"):
            with pytest.raises(ValueError, match=f"--dtype {name}"):
                Platform(device).compute_dtype(name)


def test_a_gpu_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match="--device must be auto, cpu or cuda, got tpu"):
        Platform.create("tpu", 0)
    if not torch.accelerator.is_available():
        with pytest.raises(ValueError, match="stage 2 needs GPU 2, 0 are there"):
            Platform.create("cuda", 2)
        assert Platform.create("auto", 0) == Platform("cpu")


def test_memory_is_what_the_container_may_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform_module, "_CGROUP", tmp_path)
    outside = Platform("cpu").free_memory_bytes()
    assert outside > 2**24, "without a limit it is the machine's"
    (tmp_path / "memory.max").write_text(f"{2**24}\n")
    (tmp_path / "memory.current").write_text(f"{2**23}\n")
    (tmp_path / "memory.stat").write_text(f"anon 5\ninactive_file {2**22}\n")
    assert Platform("cpu").free_memory_bytes() == 2**24 - 2**23 + 2**22
    (tmp_path / "memory.max").write_text("max\n")
    assert Platform("cpu").free_memory_bytes() > 2**24
