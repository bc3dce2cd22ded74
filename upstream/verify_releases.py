"""Check the backport on SGLang releases from PyPI: download, check, apply, compile, undo.

    python upstream/verify_releases.py [--wheels DIR] [VERSION ...] > upstream/VERSIONS.md

Wheels are taken without their dependencies into a temporary folder, or kept in DIR, from which
they are used the next time. They are unpacked; nothing of them is run.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python"))

from sglang_backport.analysis import AFFECTED, FIXED, KNOWN, NotRecognised, diagnose  # noqa: E402
from sglang_backport.change import FILES, apply_change, is_applied, undo_change  # noqa: E402

VERSIONS = (
    "0.5.6", "0.5.7", "0.5.8", "0.5.8.post1", "0.5.9", "0.5.10", "0.5.10.post1", "0.5.11",
    "0.5.12", "0.5.12.post1", "0.5.13", "0.5.13.post1", "0.5.14", "0.5.15", "0.5.15.post1",
    "0.5.16", "0.5.17", "0.5.23",
)  # fmt: skip
NOTES = """# The backport on SGLang's releases

Made by `python upstream/verify_releases.py`: each wheel from PyPI, unpacked, never run.

- *Mamba slot*: whether the profiler gives it back.
- *Lines added*: what `apply` adds to the profiler's mixin and to the scheduler. Releases that give
  the slot back get the second half alone: a failure on the first stage reaches the others.
- *Result*: of apply, apply again (must change nothing), compile, check, undo (must give every byte
  back).

| SGLang | Mamba slot | lines added | result | why |
| --- | --- | --- | --- | --- |"""


class Row(NamedTuple):
    """One line of the table."""

    version: str
    status: str
    added: str
    result: str
    reason: str


def verify(version: str, wheels: Path) -> Row:
    """Do all that is done with one release."""
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(_wheel(version, wheels)) as archive:
            names = [n for n in archive.namelist() if n.startswith("sglang/srt/")]
            archive.extractall(folder, [n for n in names if n.endswith(".py")])
        package = Path(folder) / "sglang"
        found = diagnose(package)
        if found.status in KNOWN:
            return Row(version, found.status, *_round_trip(package), found.reason)
        before = _contents(package)
        try:
            apply_change(package)
        except NotRecognised:
            result = "refused" if _contents(package) == before else "REFUSED BUT CHANGED"
            return Row(version, found.status, "none", result, found.reason)
        return Row(version, found.status, "?", "APPLIED TO THE UNKNOWN", found.reason)


def _wheel(version: str, wheels: Path) -> Path:
    def kept() -> list[Path]:
        return sorted(wheels.glob(f"sglang-{version}-*.whl"))

    if not kept():
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
             "--only-binary=:all:", "--dest", str(wheels), f"sglang=={version}"],
            check=True, stderr=subprocess.DEVNULL,
        )  # fmt: skip
    return kept()[0]


def _contents(package: Path) -> dict[str, bytes]:
    """Every source file of the folder that is changed; a file more or less shows as well."""
    folder = package / "srt" / "managers"
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def _round_trip(package: Path) -> tuple[str, str]:
    before, status = _contents(package), diagnose(package).status
    apply_change(package)
    once = _contents(package)
    added = []
    for name in FILES:
        path = package / name
        compile(path.read_text(encoding="utf-8"), str(path), "exec")
        added.append(len(once[path.name].splitlines()) - len(before[path.name].splitlines()))
    counts = " + ".join(str(count) for count in added)
    if diagnose(package).status != (FIXED if status == AFFECTED else status):
        return counts, "NOT FIXED"
    if not is_applied(package) or apply_change(package) != "already applied":
        return counts, "APPLIED TWICE"
    if _contents(package) != once:
        return counts, "CHANGED TWICE"
    undo_change(package)
    return counts, "applied, compiled, undone" if _contents(package) == before else "NOT UNDONE"


def main() -> int:
    """Print the table; 1 if a result is in capitals, which none should be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wheels", type=Path, help="folder that keeps the downloads")
    parser.add_argument("versions", nargs="*", default=VERSIONS)
    options = parser.parse_args()
    print(NOTES)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for version in options.versions:
            rows.append(verify(version, options.wheels or Path(folder)))
            print(f"| {' | '.join(rows[-1])} |", flush=True)
    return int(any(row.result.isupper() for row in rows))


if __name__ == "__main__":
    sys.exit(main())
