"""The backport command on small sources of the shapes that it must know, and must refuse."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sglang_backport.__main__ import main
from sglang_backport.analysis import MIXIN, POOLS, NotRecognised, find_anchors
from sglang_backport.change import MARK, patched_text

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


def install(folder: Path, mixin: str | None, pools: str = SEPARATE_POOLS) -> Path:
    """A site-packages folder with an SGLang of these sources."""
    for name, text in ((MIXIN, mixin), (POOLS, pools)):
        path = folder / "sglang" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if text is not None:
            path.write_text(text)
    metadata = folder / "sglang-0.5.15.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Name: sglang\nVersion: 0.5.15\n")
    return folder


class Req:
    """A stand-in request."""

    def __init__(self) -> None:
        self.req_pool_idx: int | None = 1
        self.mamba_pool_idx: int | None = 1


class Group:
    """A stand-in pipeline group that remembers what was broadcast."""

    def __init__(self, is_first_rank: bool, received: list[list[float]] | None = None) -> None:
        self.is_first_rank = is_first_rank
        self.sent: list[list[float]] | None = None
        self._received = received

    def broadcast_object_list(self, data: list[list[float]], src: int) -> None:
        if self.is_first_rank:
            self.sent = [list(part) for part in data]
        elif self._received is not None:
            data[:] = self._received


def run_profiler(source: str, group: Group, fail_at: int = -1) -> list[str]:
    """Execute the profiler of a mixin's source with stand-ins; the calls on pools, in order."""
    namespace: dict[str, object] = {"__name__": "mixin"}
    exec(compile(source, "mixin.py", "exec"), namespace)
    calls: list[str] = []

    def record(name: str):  # type: ignore[no-untyped-def]
        return lambda argument: calls.append(name)

    host = namespace["Mixin"]()  # type: ignore[operator]
    host.pp_group, host.distributed, host.lengths = group, True, ["aa", "b", "c"]
    host.table = {1: "kv"}
    host.make = lambda i, ids: Req()
    host.kv = type("Kv", (), {"free": staticmethod(record("kv"))})
    host.req_to_token_pool = type(
        "Pool",
        (),
        {"free": staticmethod(record("req")), "free_mamba_cache": staticmethod(record("mamba"))},
    )
    host.fit = lambda lens, latencies: calls.append(f"fit {len(lens)}")

    def run(req: Req) -> None:
        if calls.count("req") == fail_at:
            raise RuntimeError("no slot")

    host.run = run
    host.profile_and_init_predictor()
    return calls


def test_patched_profiler_frees_in_order() -> None:
    assert run_profiler(MIXIN_SOURCE, Group(True)) == ["kv", "req"] * 3 + ["fit 3"]
    patched = run_profiler(patched_text(MIXIN_SOURCE), Group(True))
    assert patched == ["kv", "mamba", "req"] * 3 + ["fit 3"]


def test_failure_on_the_first_stage_reaches_the_others() -> None:
    """Without the second half stage 0 raises before the broadcast and the others wait for ever."""
    released = Group(True)
    with pytest.raises(RuntimeError, match="no slot"):
        run_profiler(MIXIN_SOURCE, released, fail_at=1)
    assert released.sent is None
    patched = Group(True)
    with pytest.raises(RuntimeError, match="first pipeline stage"):
        run_profiler(patched_text(MIXIN_SOURCE), patched, fail_at=1)
    assert patched.sent == [[], []]
    with pytest.raises(RuntimeError, match="first pipeline stage"):
        run_profiler(patched_text(MIXIN_SOURCE), Group(False, [[], []]))


def test_position_is_found_by_structure_not_by_line() -> None:
    moved = MIXIN_SOURCE.replace("import logging\n", "import logging\n\n\n# more\n\n", 1)
    moved = moved.replace("req", "request").replace("request_to_token", "req_to_token")
    assert "if request.mamba_pool_idx is not None:" in patched_text(moved)


def test_check_apply_undo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = ["--site-packages", str(install(tmp_path, MIXIN_SOURCE))]
    path = tmp_path / "sglang" / MIXIN
    assert main(["check", *site]) == 1
    assert "sglang 0.5.15: affected" in capsys.readouterr().out
    assert main(["diff", *site]) == 0
    diff = capsys.readouterr().out
    assert "+                            self.req_to_token_pool.free_mamba_cache(req)" in diff
    assert path.read_text() == MIXIN_SOURCE
    assert main(["apply", *site]) == 0
    once = path.read_text()
    assert MARK in once
    assert main(["apply", *site]) == 0
    assert path.read_text() == once
    assert "already applied" in capsys.readouterr().out
    assert main(["check", *site]) == 0
    assert main(["undo", *site]) == 0
    assert path.read_text() == MIXIN_SOURCE
    assert main(["undo", *site]) == 0
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_undo_refuses_a_file_that_changed_since(tmp_path: Path) -> None:
    site = ["--site-packages", str(install(tmp_path, MIXIN_SOURCE))]
    assert main(["apply", *site]) == 0
    path = tmp_path / "sglang" / MIXIN
    path.write_text(path.read_text() + "\n# mine\n")
    assert main(["undo", *site]) == 2
    assert path.read_text().endswith("# mine\n")


@pytest.mark.parametrize(
    "mixin, pools, status, words",
    [
        (MIXIN_SOURCE, JOINT_POOLS, 0, "not affected"),
        (patched_text(MIXIN_SOURCE).replace(MARK, "#"), SEPARATE_POOLS, 0, "fixed"),
        ("class Mixin: pass\n", SEPARATE_POOLS, 0, "no dynamic chunking"),
        (None, SEPARATE_POOLS, 0, "no dynamic chunking"),
        (MIXIN_SOURCE, "class Other: pass\n", 2, "unknown"),
    ],
)
def test_other_layouts_are_told_apart_and_left_alone(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    mixin: str | None,
    pools: str,
    status: int,
    words: str,
) -> None:
    site = ["--site-packages", str(install(tmp_path, mixin, pools))]
    assert main(["check", *site]) == status
    assert words in capsys.readouterr().out
    assert main(["apply", *site]) == 2


def test_later_layout_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    install(tmp_path, None)
    later = tmp_path / "sglang" / "srt" / "managers" / "chunk_sizer.py"
    later.parent.mkdir(parents=True, exist_ok=True)
    later.write_text('"""Dynamic chunking."""\nclass ChunkSizer: pass\n')
    assert main(["check", "--site-packages", str(tmp_path)]) == 2
    assert "later layout" in capsys.readouterr().out


@pytest.mark.parametrize(
    "old, new, missing",
    [
        ("is_first_rank", "is_last_rank", "first pipeline rank"),
        ("self.req_to_token_pool.free(req)", "self.req_to_token_pool.give(req)", "profiling loop"),
        ("broadcast_object_list", "send", "broadcast"),
        ("self.run(req)", 'self.run("""a\nb""")', "string of several lines"),
        ("def profile", "def profile(", "not valid Python"),
    ],
)
def test_unknown_shape_is_refused_by_name(old: str, new: str, missing: str) -> None:
    with pytest.raises(NotRecognised, match=missing):
        patched_text(MIXIN_SOURCE.replace(old, new, 1))


def test_two_frees_are_ambiguous() -> None:
    free = "                    self.req_to_token_pool.free(req)\n"
    with pytest.raises(NotRecognised, match="found 2"):
        find_anchors(MIXIN_SOURCE.replace(free, free * 2))


def test_no_installation_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--site-packages", str(tmp_path)]) == 2
    assert main(["check", "--python", str(tmp_path / "none")]) == 2
    assert "cannot be run" in capsys.readouterr().err


def test_command_needs_no_dependency(tmp_path: Path) -> None:
    """It runs in an interpreter that sees nothing but the standard library and itself."""
    install(tmp_path / "site", MIXIN_SOURCE)
    root = Path(__file__).resolve().parents[4] / "python" / "sglang_backport"
    (tmp_path / "only").mkdir()
    (tmp_path / "only" / "sglang_backport").symlink_to(root)
    code = (
        f"import sys; sys.path[:] = [p for p in sys.path if 'site-packages' not in p]; "
        f"sys.path.insert(0, {str(tmp_path / 'only')!r}); "
        f"from sglang_backport.__main__ import main; "
        f"sys.exit(main(['check', '--site-packages', {str(tmp_path / 'site')!r}]))"
    )
    assert subprocess.run([sys.executable, "-I", "-c", code], check=False).returncode == 1
