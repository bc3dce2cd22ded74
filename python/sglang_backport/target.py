"""Where the SGLang to look at is installed."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

# Without the current folder, in which another `sglang` may lie.
_FIND = (
    "import sys, importlib.util as u; sys.path[:] = [p for p in sys.path if p]; "
    "s = u.find_spec('sglang'); "
    "print(next(iter(s.submodule_search_locations)) if s else '')"
)


class TargetError(Exception):
    """There is no SGLang at the place named; the message says why."""


class Target:
    """One installation: its `sglang` folder and version."""

    def __init__(self, package: Path) -> None:
        self.package = package
        self.version = _version(package)

    def file(self, relative: str) -> Path:
        """A file of the package."""
        return self.package / relative


def find_target(python: str | None, site_packages: str | None) -> Target:
    """The installation of an interpreter, or in a folder. Raises TargetError."""
    if site_packages is not None:
        package = Path(site_packages) / "sglang"
    else:
        assert python is not None
        package = _package_of(python)
    if not (package / "srt").is_dir():
        raise TargetError(f"no SGLang at {package} (it has no sglang/srt)")
    return Target(package)


def _package_of(python: str) -> Path:
    # PYTHONPATH may put another `sglang` in front; a user's own site-packages are meant, so no -I.
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [python, "-c", _FIND]
    try:
        found = subprocess.run(command, capture_output=True, timeout=60, env=clean)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TargetError(f"{python} cannot be run: {error}") from error
    place = found.stdout.decode().strip()
    if found.returncode or not place:
        raise TargetError(f"{python} has no sglang installed")
    return Path(place)


def _version(package: Path) -> str:
    """From the wheel's metadata beside the package, or the version file in it."""
    for metadata in sorted(package.parent.glob("sglang-*.dist-info/METADATA")):
        match = re.search(r"^Version: (\S+)", metadata.read_text(encoding="utf-8"), re.MULTILINE)
        if match:
            return match.group(1)
    for name in ("_version.py", "version.py"):
        path = package / name
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        match = re.search(r"""^__version__ = ["']([^"']+)""", text, re.MULTILINE)
        if match:
            return match.group(1)
    return "unknown"
