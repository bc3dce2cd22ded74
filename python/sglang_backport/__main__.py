"""The command line. Exit status: 0 fine, 1 affected, 2 not recognised or no such installation."""

from __future__ import annotations

import argparse
import difflib
import sys

from sglang_backport import __doc__ as description
from sglang_backport.analysis import AFFECTED, KNOWN, NO_CHUNKING, NotRecognised, diagnose
from sglang_backport.change import apply_change, is_applied, planned_changes, undo_change
from sglang_backport.target import Target, TargetError, find_target


def main(arguments: list[str] | None = None) -> int:
    """Parse, look, act."""
    parser = argparse.ArgumentParser(
        prog="python -m sglang_backport",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("action", choices=tuple(_ACTIONS))
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--python", help="interpreter whose SGLang is meant")
    where.add_argument("--site-packages", help="folder that holds an `sglang` package")
    options = parser.parse_args(arguments)
    try:
        target = find_target(options.python, options.site_packages)
        return _ACTIONS[options.action](target)
    except (TargetError, NotRecognised, OSError) as error:
        print(f"refused: {error}", file=sys.stderr)
        return 2


def _check(target: Target) -> int:
    diagnosis = diagnose(target.package)
    applied = is_applied(target.package)
    note = " (by sglang_backport)" if applied else ""
    print(f"sglang {target.version}: {diagnosis.status}{note}: {diagnosis.reason}")
    if diagnosis.status in KNOWN:
        verb = "reaches" if applied else "does not reach"
        print(f"  a profiling failure on the first stage {verb} the others")
    if diagnosis.status == AFFECTED:
        return 1
    return 0 if diagnosis.status in (*KNOWN, NO_CHUNKING) else 2


def _diff(target: Target) -> int:
    changes = planned_changes(target.package)
    for name, (before, after) in changes.items():
        path = f"python/sglang/{name}"
        sys.stdout.writelines(
            difflib.unified_diff(
                before.splitlines(keepends=True),
                after.splitlines(keepends=True),
                f"a/{path}",
                f"b/{path}",
            )
        )
    if not changes:
        print("already applied", file=sys.stderr)
    return 0


def _apply(target: Target) -> int:
    print(f"sglang {target.version}: {apply_change(target.package)}")
    return 0


def _undo(target: Target) -> int:
    print(f"sglang {target.version}: {undo_change(target.package)}")
    return 0


_ACTIONS = {"check": _check, "diff": _diff, "apply": _apply, "undo": _undo}

if __name__ == "__main__":
    sys.exit(main())
