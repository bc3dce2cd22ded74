"""The command line. Exit status: 0 fine, 1 affected, 2 not recognised or no such installation."""

from __future__ import annotations

import argparse
import difflib
import sys

from sglang_backport import __doc__ as description
from sglang_backport.analysis import (
    AFFECTED,
    LATER,
    MIXIN,
    UNKNOWN,
    Diagnosis,
    NotRecognised,
    diagnose,
)
from sglang_backport.change import MARK, apply_change, patched_text, undo_change
from sglang_backport.target import Target, TargetError, find_target


def main(arguments: list[str] | None = None) -> int:
    """Parse, look, act."""
    parser = argparse.ArgumentParser(
        prog="python -m sglang_backport",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("action", choices=("check", "diff", "apply", "undo"))
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--python", help="interpreter whose SGLang is meant")
    where.add_argument("--site-packages", help="folder that holds an `sglang` package")
    options = parser.parse_args(arguments)
    try:
        target = find_target(options.python, options.site_packages)
        return _ACTIONS[options.action](target)
    except (TargetError, NotRecognised) as error:
        print(f"refused: {error}", file=sys.stderr)
        return 2


def _check(target: Target) -> int:
    diagnosis = diagnose(target.package)
    note = " (by sglang_backport)" if _is_applied(target) else ""
    print(f"sglang {target.version}: {diagnosis.status}{note}: {diagnosis.reason}")
    if diagnosis.status == AFFECTED:
        return 1
    return 2 if diagnosis.status in (LATER, UNKNOWN) else 0


def _diff(target: Target) -> int:
    if _is_applied(target):
        print("already applied")
        return 0
    _require_affected(diagnose(target.package))
    text = target.file(MIXIN).read_text(encoding="utf-8")
    changed = patched_text(text)
    sys.stdout.writelines(
        difflib.unified_diff(
            text.splitlines(keepends=True),
            changed.splitlines(keepends=True),
            "a/python/sglang/" + MIXIN,
            "b/python/sglang/" + MIXIN,
        )
    )
    return 0


def _apply(target: Target) -> int:
    if not _is_applied(target):
        _require_affected(diagnose(target.package))
    print(f"sglang {target.version}: {apply_change(target.package)}")
    return 0


def _undo(target: Target) -> int:
    print(f"sglang {target.version}: {undo_change(target.package)}")
    return 0


def _is_applied(target: Target) -> bool:
    path = target.file(MIXIN)
    return path.is_file() and MARK in path.read_text(encoding="utf-8")


def _require_affected(diagnosis: Diagnosis) -> None:
    if diagnosis.status != AFFECTED:
        raise NotRecognised(f"{diagnosis.status}: {diagnosis.reason}")


_ACTIONS = {"check": _check, "diff": _diff, "apply": _apply, "undo": _undo}

if __name__ == "__main__":
    sys.exit(main())
