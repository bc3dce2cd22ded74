"""The README's table of models, from the registry and the results of the tests.

    python tools/support_table.py            run the family tests, write the table
    python tools/support_table.py --check    is the README's table that of the registry?

Numbers of tests are those of `test/srt/numerics/test_families.py` that passed.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "test" / "srt")]

from sglang.srt.models.layer_config import ARCHITECTURES, REFUSED  # noqa: E402
from support.families import families  # noqa: E402

README = ROOT / "README.md"
START, END = "<!-- support table -->", "<!-- end of support table -->"

# What is in the layers, by the module that computes them.
LAYERS = {
    "bamba": "Mamba-2, attention",
    "falcon_h1": "Mamba-2 and attention side by side, muP",
    "granite_moe_hybrid": "Mamba-2, attention; experts or dense",
    "jamba": "Mamba, attention; experts",
    "lfm2": "short convolution, attention",
    "lfm2_moe": "short convolution, attention; experts",
    "llama": "attention",
    "mamba2": "Mamba-2",
    "nemotron_h": "Mamba-2, attention, MLP, experts, one a layer",
    "olmo_hybrid": "gated delta net, attention",
    "qwen3_5": "gated delta net, gated attention",
    "qwen3_5_moe": "gated delta net, gated attention; experts",
    "qwen3_moe": "attention; experts",
    "qwen3_next": "gated delta net, gated attention; experts",
}


def passed_tests() -> Counter[str]:
    """Tests that passed, by architecture."""
    by_family = {name: family.architecture for name, family in families().items()}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "test/srt/numerics/test_families.py"]
        subprocess.run([*command, f"--junitxml={report}"], cwd=ROOT, check=False)
        cases = ElementTree.parse(report).getroot().iter("testcase")
        found: Counter[str] = Counter()
        for case in cases:
            ids = re.search(r"\[(.+)\]", case.get("name", ""))
            if ids is None or len(case):  # a child element is a failure or a skip
                continue
            longest = max((n for n in by_family if n in ids.group(1)), key=len, default=None)
            if longest is not None:
                found[by_family[longest]] += 1
    return found


def table(passed: Counter[str]) -> str:
    """Markdown."""
    lines = ["| architecture | layers | tests against `transformers` |", "| --- | --- | --- |"]
    for name in sorted(ARCHITECTURES):
        module = ARCHITECTURES[name].model.partition(".")[0]
        tests = str(passed[name]) if passed[name] else "by its text model's"
        lines.append(f"| `{name}` | {LAYERS[module]} | {tests} |")
    refused = "; ".join(f"`{name}`: {reason}" for name, reason in REFUSED.items())
    return "\n".join([*lines, "", f"Refused by name: {refused}."])


def named_in_readme() -> list[str]:
    """Architectures of the table that is there."""
    text = README.read_text()
    inside = text[text.index(START) : text.index(END)]
    return re.findall(r"^\| `(\w+)`", inside, re.M)


def main() -> int:
    """Write, or check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    if parser.parse_args().check:
        return 0 if named_in_readme() == sorted(ARCHITECTURES) else 1
    text = README.read_text()
    before, after = text[: text.index(START) + len(START)], text[text.index(END) :]
    README.write_text(f"{before}\n{table(passed_tests())}\n{after}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
