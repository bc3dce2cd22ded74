"""Write our regression test in the form of SGLang's test tree.

    python upstream/make_upstream_test.py > upstream/test_pp_mamba_profiling.py

Everything that is checked comes from `test/srt/test_pp_mamba_profiling.py` and its server helper,
word for word; only the frame (registration, unittest class, default model) is written here.
"""

from __future__ import annotations

import ast
import itertools
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1] / "test" / "srt"

FRAME = '''"""Start-up profiling of a hybrid model on a pipeline gives its Mamba slots back.

Dynamic chunking profiles synthetic prefill requests before the server is ready. Each takes KV, a
request slot and a Mamba slot; all three must be free again before the next one.

Usage: python3 -m unittest test_pp_mamba_profiling
(in CI: test/registered/pp/, `/rerun-group pp`)
"""

{imports}

from sglang.test.ci.ci_register import register_cuda_ci
from sglang.test.test_utils import CustomTestCase

register_cuda_ci(est_time=180, stage="extra-a", runner_config="2-gpu-large")

PYTHON = sys.executable
MODEL = os.environ.get("SGLANG_TEST_MODEL", "Qwen/Qwen3.5-0.8B")
EXTRA = shlex.split(os.environ.get("SGLANG_TEST_EXTRA_ARGS", ""))
TIMEOUT = float(os.environ.get("SGLANG_TEST_TIMEOUT", "600"))

{definitions}


class TestPPMambaProfiling(CustomTestCase):
    def test_profiling_gives_mamba_slots_back(self):
        with hybrid_server(64, []) as server:
            check_server(server, 64)


if __name__ == "__main__":
    unittest.main()
'''

FROM_SUPPORT = ("TEST_ROOT", "PYTHON_ROOT", "READY", "assert_gone", "ServerProcess")
FROM_TEST = (
    "PROFILING", "FIT_REFUSED", "FAILURES", "device_flags", "hybrid_server", "wait_until_ready",
    "check_line", "check_server", "call", "check_pools", "check_answers",
)  # fmt: skip


def definitions(path: Path, names: tuple[str, ...]) -> list[str]:
    """Source of top-level definitions, in the order of `names`."""
    text = path.read_text()
    found: dict[str, str] = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = ast.get_source_segment(text, node) or ""
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            start = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            found[node.name] = "\n".join(text.splitlines()[start - 1 : node.end_lineno])
    missing = [name for name in names if name not in found]
    assert not missing, f"{path.name} has no {missing}"
    return [found[name] for name in names]


def imports_for(code: str, paths: list[Path]) -> str:
    """The standard library's imports of `paths` that `code` uses, sorted."""
    used = {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}
    lines = {"import unittest"}
    for path in paths:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Import):
                lines |= {f"import {a.name}" for a in node.names if a.name.split(".")[0] in used}
            elif isinstance(node, ast.ImportFrom) and node.module not in OURS:
                lines |= {
                    f"from {node.module} import {a.name}" for a in node.names if a.name in used
                }
    modules = sorted(line for line in lines if line.startswith("import"))
    from_lines = sorted(line for line in lines if line.startswith("from"))
    by_module = itertools.groupby(from_lines, key=lambda line: line.split(" import ")[0])
    names = [
        f"{module} import {', '.join(line.split(' import ')[1] for line in group)}"
        for module, group in by_module
    ]
    return "\n".join(["from __future__ import annotations", "", *modules, *names])


OURS = ("__future__", "support.server_process")


def upstream_test() -> str:
    """The test's source."""
    paths = [TESTS / "support" / "server_process.py", TESTS / "test_pp_mamba_profiling.py"]
    parts = definitions(paths[0], FROM_SUPPORT) + definitions(paths[1], FROM_TEST)
    frame = FRAME.replace("{definitions}", _spaced(parts))
    return frame.replace("{imports}", imports_for(frame.replace("{imports}", ""), paths))


def _spaced(parts: list[str]) -> str:
    """Two lines between functions and classes, none between assignments."""
    text = parts[0]
    for before, part in itertools.pairwise(parts):
        apart = any(p.startswith(("def ", "class ", "@")) for p in (before, part))
        text += ("\n\n\n" if apart else "\n") + part
    return text


if __name__ == "__main__":
    print(upstream_test(), end="")
