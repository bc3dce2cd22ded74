"""Write our regression test in the form of SGLang's test tree.

    python upstream/make_upstream_test.py > upstream/test_pp_mamba_profiling.py

Everything that is checked comes from `test/srt/test_pp_mamba_profiling.py` and its server helper,
word for word; only the frame (registration, unittest class, default model) is written here.
"""

from __future__ import annotations

import ast
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1] / "test" / "srt"

FRAME = '''"""Start-up profiling of a hybrid model on a pipeline gives its Mamba slots back.

Generated from this test's origin by its make_upstream_test.py. Put it at
test/registered/pp/test_pp_mamba_profiling.py; it runs in the multi-GPU PP group
(/rerun-group pp).
"""

{imports}

from sglang.test.ci.ci_register import register_cuda_ci
from sglang.test.test_utils import CustomTestCase

register_cuda_ci(est_time=180, stage="extra-b", runner_config="4-gpu-h100")

PYTHON = sys.executable
MODEL = os.environ.get("SGLANG_TEST_MODEL", "nvidia/NVIDIA-Nemotron-Nano-9B-v2")
EXTRA = shlex.split(os.environ.get("SGLANG_TEST_EXTRA_ARGS", ""))
TIMEOUT = float(os.environ.get("SGLANG_TEST_TIMEOUT", "600"))
READY = "The server is fired up and ready to roll!"

{definitions}


class TestPPMambaProfiling(CustomTestCase):
    def test_profiling_gives_mamba_slots_back(self):
        with hybrid_server(64, []) as server:
            log = "\\n".join(server.lines)
            self.assertIn(PROFILING, log, "no profiling took place")
            call(server, "/health")
            check_answers(server, 70)
            for line in server.lines:
                check_line(line)


if __name__ == "__main__":
    unittest.main()
'''

IMPORTS = (
    "glob json os pathlib shlex shutil socket subprocess sys threading time unittest urllib.request"
).split()
FROM_TEST = (
    "PROFILING", "FIT_REFUSED", "FAILURES", "device_flags", "hybrid_server", "wait_until_ready",
    "check_line", "call", "check_answers",
)  # fmt: skip
FROM_SUPPORT = ("TEST_ROOT", "PYTHON_ROOT", "ServerProcess")


def definitions(path: Path, names: tuple[str, ...]) -> list[str]:
    """Source of top-level definitions, in the order of `names`."""
    text = path.read_text()
    found: dict[str, str] = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = ast.get_source_segment(text, node) or ""
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            lines = text.splitlines()
            start = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            found[node.name] = "\n".join(lines[start - 1 : node.end_lineno])
    missing = [name for name in names if name not in found]
    assert not missing, f"{path.name} has no {missing}"
    return [found[name] for name in names]


def main() -> None:
    """Print the test."""
    parts = definitions(TESTS / "support" / "server_process.py", FROM_SUPPORT)
    parts += definitions(TESTS / "test_pp_mamba_profiling.py", FROM_TEST)
    names = ["from __future__ import annotations", "", *(f"import {name}" for name in IMPORTS)]
    names += ["from collections.abc import Iterator", "from contextlib import contextmanager"]
    names += ["from typing import Any"]
    print(FRAME.format(imports="\n".join(names), definitions="\n\n\n".join(parts)), end="")


if __name__ == "__main__":
    main()
