"""Where the SGLang to look at is installed."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

_FIND = (
    "import importlib.util as u; s = u.find_spec('sglang'); "
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
    # -I: neither the current folder nor PYTHONPATH may put another `sglang` in front.
    try:
        found = subprocess.run([python, "-I", "-c", _FIND], capture_output=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TargetError(f"{python} cannot be run: {error}") from error
    place = found.stdout.decode().strip()
    if found.returncode or not place:
        raise TargetError(f"{python} has no sglang installed")
    return Path(place)


def _version(package: Path) -> str:
    """From the wheel's metadata beside the package."""
    for metadata in sorted(package.parent.glob("sglang-*.dist-info/METADATA")):
        match = re.search(r"^Version: (\S+)", metadata.read_text(encoding="utf-8"), re.MULTILINE)
        if match:
            return match.group(1)
    return "unknown"
