"""The regression test for SGLang's own tree is made from ours, and says the same."""

from __future__ import annotations

import ast
import builtins
import runpy
import subprocess
import sys
from pathlib import Path

UPSTREAM = Path(__file__).resolve().parents[4] / "upstream"
MADE = UPSTREAM / "test_pp_mamba_profiling.py"


def test_the_copy_is_what_the_generator_makes() -> None:
    """Fails after a change of our test or its helper: run the generator again."""
    made = subprocess.run(
        [sys.executable, UPSTREAM / "make_upstream_test.py"], capture_output=True, text=True
    )
    assert made.returncode == 0, made.stderr
    assert made.stdout == MADE.read_text()


def test_the_copy_stands_alone() -> None:
    """Every name in it is defined, imported or built in; nothing of this project is imported."""
    tree = ast.parse(MADE.read_text())
    nodes = list(ast.walk(tree))
    known = set(dir(builtins)) | {"__file__", "__name__"}
    for node in nodes:
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.arg(arg=name):
                known.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                known.add(name)
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                known |= {(a.asname or a.name).split(".")[0] for a in names}
    loaded = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    assert not loaded - known
    modules = {n.module for n in nodes if isinstance(n, ast.ImportFrom)}
    assert not [m for m in modules if m and m.startswith("support")]
    assert any(isinstance(n, ast.Call) and ast.unparse(n.func) == "register_cuda_ci" for n in nodes)


def test_the_generator_names_a_definition_that_went_missing(tmp_path: Path) -> None:
    generator = runpy.run_path(str(UPSTREAM / "make_upstream_test.py"))
    source = tmp_path / "source.py"
    source.write_text("A = 1\n\n\n@B\ndef f():\n    return A\n")
    assert generator["definitions"](source, ("f", "A")) == ["@B\ndef f():\n    return A", "A = 1"]
    try:
        generator["definitions"](source, ("gone",))
    except AssertionError as error:
        assert "source.py has no ['gone']" in str(error)
    else:
        raise AssertionError("a missing definition was accepted")
