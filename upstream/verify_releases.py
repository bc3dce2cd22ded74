"""Check the backport on SGLang releases from PyPI: download, check, apply, compile, undo.

    python upstream/verify_releases.py [VERSION ...] > upstream/VERSIONS.md

Wheels are taken without their dependencies into a temporary folder; nothing of them is run.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python"))

from sglang_backport.analysis import MIXIN, NotRecognised, diagnose  # noqa: E402
from sglang_backport.change import apply_change, patched_text, undo_change  # noqa: E402

VERSIONS = (
    "0.5.6", "0.5.7", "0.5.8", "0.5.8.post1", "0.5.9", "0.5.10", "0.5.10.post1", "0.5.11",
    "0.5.12", "0.5.12.post1", "0.5.13", "0.5.13.post1", "0.5.14", "0.5.15", "0.5.15.post1",
    "0.5.16", "0.5.17", "0.5.23",
)  # fmt: skip


class Row(NamedTuple):
    """One line of the table."""

    version: str
    status: str
    applied: str
    reason: str


def verify(version: str, folder: Path) -> Row:
    """Do all that is done with one release."""
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:",
         "--dest", str(folder), f"sglang=={version}"],
        check=True, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    package = folder / "site" / "sglang"
    found = diagnose(package)
    if found.status != "affected":
        return Row(version, found.status, "nothing to do", found.reason)
    return Row(version, found.status, _round_trip(package), found.reason)


def _round_trip(package: Path) -> str:
    path = package / MIXIN
    original = path.read_bytes()
    apply_change(package)
    compile(path.read_text(), str(path), "exec")
    if diagnose(package).status != "fixed":
        return "applied, but not seen as fixed"
    if apply_change(package) != "already applied":
        return "applied twice"
    undo_change(package)
    if path.read_bytes() != original:
        return "not undone"
    try:
        patched_text(path.read_text() + "\ndef profile_and_init_predictor(:\n")
    except NotRecognised:
        return "applied, compiled, undone"
    return "accepted a broken file"


def main() -> None:
    """Print the table."""
    print("# Releases\n")
    print("Made by `python upstream/verify_releases.py`.\n")
    print("| SGLang | profiler | backport | why |\n| --- | --- | --- | --- |")
    for version in sys.argv[1:] or VERSIONS:
        with tempfile.TemporaryDirectory() as folder:
            row = verify(version, Path(folder))
        print(f"| {row.version} | {row.status} | {row.applied} | {row.reason} |", flush=True)


if __name__ == "__main__":
    main()
