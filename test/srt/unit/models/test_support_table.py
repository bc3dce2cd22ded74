"""The README names what is served."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[4]


def test_the_readme_names_every_architecture() -> None:
    command = [sys.executable, str(ROOT / "tools" / "support_table.py"), "--check"]
    assert subprocess.run(command, check=False).returncode == 0, (
        "an architecture came or went: run tools/support_table.py"
    )
