"""The backport command on small sources of the shapes that it must know, and must refuse."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sglang_backport.__main__ import main
from sglang_backport.analysis import MIXIN, SCHEDULER, NotRecognised
from sglang_backport.change import BACKUP_SUFFIX, MARK, patched_mixin, patched_scheduler
from support.backport_shapes import (
    JOINT_POOLS,
    MIXIN_SOURCE,
    SCHEDULER_SOURCE,
    SEPARATE_POOLS,
    Host,
    contents,
    install,
)

RELEASED = (MIXIN_SOURCE, SCHEDULER_SOURCE)
PATCHED = (patched_mixin(MIXIN_SOURCE), patched_scheduler(SCHEDULER_SOURCE))


def test_patched_profiler_frees_in_order() -> None:
    assert Host(*RELEASED).start() == ["kv", "req"] * 3 + ["fit 3"]
    patched = Host(*PATCHED)
    assert patched.start() == ["kv", "mamba", "req"] * 3 + ["fit 3"]
    assert patched.stage.enable_dynamic_chunking
    assert patched.sent == [[[2, 1, 1], [1.0, 1.0, 1.0]]]


def test_failure_on_the_first_stage_reaches_the_others() -> None:
    """Without the second half stage 0 sends nothing and the others wait for ever."""
    released = Host(*RELEASED)
    released.start(fail_at=1)
    assert released.sent == [] and not released.stage.enable_dynamic_chunking
    first = Host(*PATCHED)
    first.start(fail_at=1)
    assert first.sent == [[[], []]] and not first.stage.enable_dynamic_chunking
    assert first.calls[-2:] == ["clear requests", "clear kv"], "what failed midway is given back"
    other = Host(*PATCHED, is_first_rank=False)
    other.received = first.sent[0]
    assert other.start() == [] and not other.stage.enable_dynamic_chunking


def test_failure_after_the_samples_were_sent_is_not_sent_again() -> None:
    """Every stage fits the same samples, so each fails alone; nobody waits for a second message."""
    first = Host(*PATCHED)
    first.start(fail_fit=True)
    assert len(first.sent) == 1 and not first.stage.enable_dynamic_chunking
    other = Host(*PATCHED, is_first_rank=False)
    other.received = first.sent[0]
    assert other.start(fail_fit=True) == ["fit 3"] and other.sent == []


def test_nothing_is_rewritten() -> None:
    """Every line stays as it is and in its order; lines are only added between them."""
    for before, after in zip(RELEASED, PATCHED, strict=True):
        added = iter(after.splitlines())
        assert all(line in added for line in before.splitlines())
    crlf = patched_mixin(MIXIN_SOURCE.replace("\n", "\r\n"))
    assert crlf == PATCHED[0].replace("\n", "\r\n")


def test_position_is_found_by_structure_not_by_line() -> None:
    moved = MIXIN_SOURCE.replace("import logging\n", "import logging\n\n\n# more\n\n", 1)
    moved = moved.replace("req", "request").replace("request_to_token", "req_to_token")
    assert "if request.mamba_pool_idx is not None:" in patched_mixin(moved)


def test_check_apply_undo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = ["--site-packages", str(install(tmp_path, MIXIN_SOURCE))]
    before = contents(tmp_path)
    assert main(["check", *site]) == 1
    assert "sglang 0.5.15: affected" in capsys.readouterr().out
    assert main(["diff", *site]) == 0
    diff = capsys.readouterr().out
    assert "+                        self.req_to_token_pool.free_mamba_cache(req)" in diff
    assert not [line for line in diff.splitlines() if line[:1] == "-" and line[:3] != "---"]
    assert contents(tmp_path) == before
    assert main(["apply", *site]) == 0
    once = contents(tmp_path)
    assert (once[f"sglang/{MIXIN}"], once[f"sglang/{SCHEDULER}"]) == PATCHED
    assert main(["apply", *site]) == 0
    assert contents(tmp_path) == once
    assert "already applied" in capsys.readouterr().out
    assert main(["check", *site]) == 0
    assert main(["undo", *site]) == 0
    assert contents(tmp_path) == before
    assert main(["undo", *site]) == 0
    assert "not applied" in capsys.readouterr().out


@pytest.mark.parametrize("name", [MIXIN, SCHEDULER])
def test_undo_refuses_a_file_that_changed_since(tmp_path: Path, name: str) -> None:
    """Both files stay as they are: half an undo would be worse than none."""
    site = ["--site-packages", str(install(tmp_path, MIXIN_SOURCE))]
    assert main(["apply", *site]) == 0
    path = tmp_path / "sglang" / name
    path.write_text(path.read_text() + "\n# mine\n")
    before = contents(tmp_path)
    assert main(["undo", *site]) == 2
    assert contents(tmp_path) == before


def test_undo_without_its_backup_is_refused(tmp_path: Path) -> None:
    site = ["--site-packages", str(install(tmp_path, MIXIN_SOURCE))]
    assert main(["apply", *site]) == 0
    path = tmp_path / "sglang" / MIXIN
    path.with_name(path.name + BACKUP_SUFFIX).unlink()
    assert main(["undo", *site]) == 2
    assert MARK in path.read_text()


def test_a_file_shared_by_hard_link_changes_here_only(tmp_path: Path) -> None:
    """Some installers link one file into many environments; only the one named may change."""
    site = ["--site-packages", str(install(tmp_path, MIXIN_SOURCE))]
    path, other = tmp_path / "sglang" / MIXIN, tmp_path / "other.py"
    path.chmod(0o640)
    other.hardlink_to(path)
    for action in ("apply", "undo"):
        assert main([action, *site]) == 0
        assert other.read_text() == MIXIN_SOURCE
        assert path.stat().st_mode & 0o777 == 0o640


FIXED = MIXIN_SOURCE.replace(
    "                    self.req_to_token_pool.free(req)",
    "                    self.req_to_token_pool.free_mamba_cache(req)\n"
    "                    self.req_to_token_pool.free(req)",
)


@pytest.mark.parametrize(
    "mixin, pools, words",
    [(MIXIN_SOURCE, JOINT_POOLS, "not affected"), (FIXED, SEPARATE_POOLS, "fixed")],
    ids=["not affected", "fixed"],
)
def test_release_that_frees_the_slot_gets_the_second_half_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], mixin: str, pools: str, words: str
) -> None:
    site = ["--site-packages", str(install(tmp_path, mixin, pools))]
    assert main(["check", *site]) == 0
    assert words in capsys.readouterr().out
    assert main(["apply", *site]) == 0
    path = tmp_path / "sglang" / MIXIN
    changed = path.read_text()
    assert MARK in changed and changed.count("free_mamba") == mixin.count("free_mamba")
    assert main(["check", *site]) == 0
    assert "(by sglang_backport)" in capsys.readouterr().out
    assert main(["undo", *site]) == 0
    assert path.read_text() == mixin


@pytest.mark.parametrize(
    "mixin, pools, status, words",
    [
        ("class Mixin: pass\n", SEPARATE_POOLS, 0, "no dynamic chunking"),
        (None, SEPARATE_POOLS, 0, "no dynamic chunking"),
        (MIXIN_SOURCE, "class Other: pass\n", 2, "unknown"),
        (MIXIN_SOURCE.replace(".free(", ".give("), SEPARATE_POOLS, 2, "unknown"),
        (MIXIN_SOURCE.replace("_pool.free(", "_pool.give("), SEPARATE_POOLS, 1, "affected"),
    ],
    ids=["no profiler", "no mixin", "other pools", "frees nothing", "frees otherwise"],
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
    before = contents(tmp_path)
    assert main(["check", *site]) == status
    assert words in capsys.readouterr().out
    assert main(["apply", *site]) == 2
    assert "refused" in capsys.readouterr().err
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    "scheduler",
    [
        SCHEDULER_SOURCE.replace("except Exception as error", "finally"),
        SCHEDULER_SOURCE.replace("except Exception as error", "except ValueError"),
        SCHEDULER_SOURCE.replace(":\n            self.enable", ": self.enable"),
        SCHEDULER_SOURCE * 2,
        SCHEDULER_SOURCE.replace("_pool.clear", "_pool.reset"),
        "class Scheduler: pass\n",
    ],
    ids=["no handler", "narrow handler", "one line", "two callers", "other pools", "no caller"],
)
def test_unknown_caller_is_refused_before_anything_is_written(
    tmp_path: Path, scheduler: str
) -> None:
    site = ["--site-packages", str(install(tmp_path, MIXIN_SOURCE, scheduler=scheduler))]
    before = contents(tmp_path)
    assert main(["apply", *site]) == 2
    assert contents(tmp_path) == before


def test_apply_that_was_cut_short_is_completed_or_undone(tmp_path: Path) -> None:
    site = ["--site-packages", str(install(tmp_path, MIXIN_SOURCE))]
    before = contents(tmp_path)
    assert main(["apply", *site]) == 0
    whole = contents(tmp_path)
    for action, after in (("apply", whole), ("undo", before)):
        (tmp_path / "sglang" / SCHEDULER).write_text(SCHEDULER_SOURCE)
        assert main([action, *site]) == 0
        assert contents(tmp_path) in (
            after,
            {**after, f"sglang/{SCHEDULER}{BACKUP_SUFFIX}": SCHEDULER_SOURCE},
        )


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
        ("self.req_to_token_pool.free(req)", "self.req_to_token_pool.free(req, 1)", "found 0"),
        (
            "self.req_to_token_pool.free(req)",
            "_ = 1; self.req_to_token_pool.free(req)",
            "holds more",
        ),
        ("broadcast_object_list", "send", "broadcast"),
        ("seq_lens, latencies = data", "seq_lens, latencies, _ = data", "broadcast"),
        ("def profile", "def profile(", "not valid Python"),
        ("def profile", "def measure", "has no profile_and_init_predictor"),
    ],
)
def test_unknown_shape_is_refused_by_name(old: str, new: str, missing: str) -> None:
    assert old in MIXIN_SOURCE
    with pytest.raises(NotRecognised, match=missing):
        patched_mixin(MIXIN_SOURCE.replace(old, new, 1))


def test_two_frees_are_ambiguous() -> None:
    free = "                    self.req_to_token_pool.free(req)\n"
    with pytest.raises(NotRecognised, match="found 2"):
        patched_mixin(MIXIN_SOURCE.replace(free, free * 2))


def test_target_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    """This project's own `sglang`, which is importable here, is never taken for the target."""
    with pytest.raises(SystemExit, match="2"):
        main(["check"])
    assert "--python" in capsys.readouterr().err


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
