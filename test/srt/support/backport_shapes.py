"""Small sources with the shape of an SGLang's profiler, and what runs them.

Written for these tests: the parts that the backport goes by are there, everything else is not.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from sglang_backport.analysis import MIXIN, POOLS, SCHEDULER

MIXIN_SOURCE = '''"""A mixin."""
import logging

logger = logging.getLogger(__name__)


class Mixin:
    def profile_and_init_predictor(self):
        """Profile."""
        seq_lens = []
        latencies = []
        if self.pp_group.is_first_rank:
            for i, ids in enumerate(self.lengths):
                req = self.make(i, ids)

                self.run(req)
                seq_lens.append(len(ids))
                latencies.append(1.0)
                if req.req_pool_idx is not None:
                    kv_indices = self.table[req.req_pool_idx]
                    self.kv.free(kv_indices)
                    self.req_to_token_pool.free(req)
            logger.info(f"{len(seq_lens)} samples")

        # To the other stages
        if self.distributed:
            data = [seq_lens, latencies]
            self.pp_group.broadcast_object_list(data, src=0)
            seq_lens, latencies = data
        self.fit(seq_lens, latencies)
'''

SEPARATE_POOLS = """
class HybridReqToTokenPool:
    def free_mamba_cache(self, req):
        self.mamba.free(req.mamba_pool_idx)
        req.mamba_pool_idx = None

    def free(self, req):
        self.slots.append(req.req_pool_idx)
"""

JOINT_POOLS = """
class HybridReqToTokenPool:
    def free(self, index, free_mamba_cache=True, keep=None):
        pass
"""


SCHEDULER_SOURCE = """
class Scheduler(Mixin):
    def init_chunking(self):
        try:
            self.profile_and_init_predictor()
        except Exception as error:
            self.enable_dynamic_chunking = False

    def flush_cache(self):
        self.req_to_token_pool.clear()
        self.token_to_kv_pool_allocator.clear()
"""


def install(
    folder: Path, mixin: str | None, pools: str = SEPARATE_POOLS, scheduler: str = SCHEDULER_SOURCE
) -> Path:
    """A site-packages folder with an SGLang of these sources."""
    for name, text in ((MIXIN, mixin), (POOLS, pools), (SCHEDULER, scheduler)):
        path = folder / "sglang" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if text is not None:
            path.write_text(text)
    metadata = folder / "sglang-0.5.15.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Name: sglang\nVersion: 0.5.15\n")
    return folder


def contents(folder: Path) -> dict[str, str]:
    """Every file below it, by relative path."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_text() for path in files}


class Host:
    """A stage: the scheduler and mixin of some source, executed with stand-ins for all else.

    calls: what was asked of the pools and the fit, in order. sent: what stage 0 broadcast.
    """

    def __init__(self, mixin: str, scheduler: str, is_first_rank: bool = True) -> None:
        namespace: dict[str, Any] = {"__name__": "stage"}
        exec(compile(mixin + scheduler, "stage.py", "exec"), namespace)
        self.calls: list[str] = []
        self.sent: list[Any] = []
        self.received: list[Any] = []
        self.fail_at = self.fail_fit = None
        self.stage = stage = namespace["Scheduler"]()
        stage.distributed, stage.lengths, stage.table = True, ["aa", "b", "c"], {1: "kv"}
        stage.enable_dynamic_chunking = True
        stage.make = lambda i, ids: SimpleNamespace(req_pool_idx=1, mamba_pool_idx=1)
        stage.kv = SimpleNamespace(free=self._record("kv"))
        stage.req_to_token_pool = SimpleNamespace(
            free=self._record("req"),
            free_mamba_cache=self._record("mamba"),
            clear=lambda: self.calls.append("clear requests"),
        )
        stage.token_to_kv_pool_allocator = SimpleNamespace(
            clear=lambda: self.calls.append("clear kv")
        )
        stage.pp_group = SimpleNamespace(
            is_first_rank=is_first_rank, broadcast_object_list=self._broadcast
        )
        stage.run, stage.fit = self._run, self._fit

    def start(self, fail_at: int | None = None, fail_fit: bool = False) -> list[str]:
        """Profile; whether dynamic chunking stays on is in `stage`. The calls, in order."""
        self.fail_at, self.fail_fit = fail_at, fail_fit
        self.stage.init_chunking()
        return self.calls

    def _record(self, name: str) -> Callable[[object], None]:
        return lambda argument: self.calls.append(name)

    def _broadcast(self, data: list[Any], src: int) -> None:
        assert src == 0
        if self.stage.pp_group.is_first_rank:
            self.sent.append([list(part) for part in data])
        else:
            data[:] = self.received

    def _run(self, req: object) -> None:
        if self.calls.count("req") == self.fail_at:
            raise RuntimeError("no slot")

    def _fit(self, lengths: list[int], latencies: list[float]) -> None:
        self.calls.append(f"fit {len(lengths)}")
        if self.fail_fit:
            raise ValueError("not positive")
