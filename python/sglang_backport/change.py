"""The change itself: lines inserted at three places of two files, made, kept and undone.

Nothing is moved or replaced, so that what is added can be read at a glance and taken out again.
"""

from __future__ import annotations

import ast
import os
import shutil
from pathlib import Path
from typing import NamedTuple

from sglang_backport.analysis import (
    AFFECTED,
    CLEARED,
    KNOWN,
    MIXIN,
    SCHEDULER,
    NotRecognised,
    diagnose,
    find_handler,
    find_handover,
    find_slot_free,
    parse,
    read,
)

BACKUP_SUFFIX = ".before-sglang-backport"
MARK = "# sglang_backport:"
FILES = (MIXIN, SCHEDULER)


class Insertion(NamedTuple):
    """Lines to put before that line, counted from 0."""

    line: int
    lines: list[str]


def is_applied(package: Path) -> bool:
    """Whether every file carries the change."""
    paths = [package / name for name in FILES]
    return all(path.is_file() and MARK in read(path) for path in paths)


def planned_changes(package: Path) -> dict[str, tuple[str, str]]:
    """Text before and after of each file that is still to be changed, by relative name.

    Raises NotRecognised when a place is not found or the release is not one that it knows.
    """
    if is_applied(package):
        return {}
    diagnosis = diagnose(package)
    if diagnosis.status not in KNOWN:
        raise NotRecognised(f"{diagnosis.status}: {diagnosis.reason}")
    mixin, scheduler = (read(package / name) for name in FILES)
    changes = {}
    if MARK not in mixin:
        changes[MIXIN] = (mixin, patched_mixin(mixin, diagnosis.status == AFFECTED))
    if MARK not in scheduler:
        changes[SCHEDULER] = (scheduler, patched_scheduler(scheduler))
    return changes


def patched_mixin(text: str, frees_slot: bool = True) -> str:
    """The mixin's source with its part of the change.

    The Mamba slot of a profiling request is freed after its KV and before its request slot, by
    which its extra buffer is found (left out where `frees_slot` is false: the release does so).
    Stages that are handed no samples raise, as stage 0 has. Raises NotRecognised.
    """
    waiting, samples = find_handover(text)
    before = [f"{MARK} whoever handles a failure must know if the others still wait",
              "self.pp_profile_handed_over = True"]  # fmt: skip
    after = [
        f"{MARK} the first stage failed; it sent no samples",
        f"if not {samples[0]}:",
        '    raise RuntimeError("profiling failed on the first pipeline stage")',
    ]
    insertions = [_before(text, waiting, before), _after(text, waiting, after)]
    if frees_slot:
        statement, pool, req = find_slot_free(text)
        three = [
            f"{MARK} a hybrid model's request holds a Mamba slot too",
            f"if {req}.mamba_pool_idx is not None:",
            f"    {pool}.free_mamba_cache({req})",
        ]
        insertions.append(_before(text, statement, three))
    return _inserted(text, insertions, MIXIN)


def patched_scheduler(text: str) -> str:
    """The scheduler's source: a failure of stage 0 reaches the others as empty lists of samples.

    The request that failed never gave back what it had; nobody else holds anything yet, so the
    pools are cleared; else the first idle check would find a leak. Raises NotRecognised.
    """
    handler = find_handler(text)
    lines = [
        f"{MARK} the other stages wait for samples, and a request failed midway",
        "if self.pp_group.is_first_rank and not getattr(",
        '    self, "pp_profile_handed_over", False',
        "):",
        "    self.pp_group.broadcast_object_list([[], []], src=0)",
        *(f"    self.{pool}.clear()" for pool in CLEARED),
    ]
    return _inserted(text, [_before(text, handler.body[0], lines)], SCHEDULER)


def apply_change(package: Path) -> str:
    """Change the files and keep backups; "applied" or "already applied"."""
    changes = planned_changes(package)
    for name, (before, _) in changes.items():
        _write(_backup(package / name), before, like=package / name)
    for name, (_, after) in changes.items():
        _write(package / name, after, like=package / name)
    return "applied" if changes else "already applied"


def undo_change(package: Path) -> str:
    """Put the backups back; "undone" or "not applied".

    Raises NotRecognised, and leaves both files alone, if one changed since or lost its backup.
    """
    paths = [package / name for name in FILES if (package / name).is_file()]
    originals = {path: _original(path) for path in paths if MARK in read(path)}
    for path, original in originals.items():
        _write(path, original, like=path)
        _backup(path).unlink()
    return "undone" if originals else "not applied"


def _original(path: Path) -> str:
    backup = _backup(path)
    if not backup.is_file():
        raise NotRecognised(f"{backup} is gone")
    original, text = read(backup), read(path)
    if path.name == Path(SCHEDULER).name:
        expected = patched_scheduler(original)
    else:
        frees_slot = text.count("free_mamba_cache") > original.count("free_mamba_cache")
        expected = patched_mixin(original, frees_slot)
    if text != expected:
        raise NotRecognised(f"{path} was changed after the backport; undo it by hand")
    return original


def _backup(path: Path) -> Path:
    return path.with_name(path.name + BACKUP_SUFFIX)


def _write(path: Path, text: str, like: Path) -> None:
    """Replace the file as a whole: installers share files between environments by hard links."""
    new = path.with_name(path.name + ".new")
    new.write_bytes(text.encode("utf-8"))
    shutil.copymode(like, new)
    os.replace(new, path)


def _before(text: str, statement: ast.stmt, lines: list[str]) -> Insertion:
    return Insertion(statement.lineno - 1, _indented(text, statement, lines))


def _after(text: str, statement: ast.stmt, lines: list[str]) -> Insertion:
    assert statement.end_lineno is not None
    return Insertion(statement.end_lineno, _indented(text, statement, lines))


def _indented(text: str, statement: ast.stmt, lines: list[str]) -> list[str]:
    """The lines at the statement's depth; it must start its line, else they would split it."""
    first = text.splitlines(keepends=True)[statement.lineno - 1]
    indent = first[: statement.col_offset]
    if indent.strip():
        raise NotRecognised(f"line {statement.lineno} holds more than one statement")
    end = "\r\n" if first.endswith("\r\n") else "\n"
    return [indent + line + end for line in lines]


def _inserted(text: str, insertions: list[Insertion], name: str) -> str:
    lines = text.splitlines(keepends=True)
    for line, new in sorted(insertions, reverse=True):
        lines[line:line] = new
    changed = "".join(lines)
    parse(changed, f"{name} with the change")  # never write what does not compile
    return changed
