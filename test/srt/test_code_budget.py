"""Size and shape of the code: what a reader can hold in mind is checked, not argued about."""

from __future__ import annotations

import ast

import pytest

from support.source_tree import Source, sources

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_PARAMETERS = 8
MAX_PUBLIC_METHODS = 20

# Packages in which everything public is documented.
DOCUMENTED = ("managers", "mem_cache", "distributed", "entrypoints", "model_executor")


@pytest.mark.parametrize("source", sources(), ids=lambda s: s.name)
def test_file_is_within_its_budget(source: Source) -> None:
    assert len(source.text.splitlines()) <= MAX_FILE_LINES
    for name, function in source.functions():
        length = (function.end_lineno or 0) - function.lineno + 1
        assert length <= MAX_FUNCTION_LINES, f"{name} has {length} lines"
        arguments = function.args
        count = len(arguments.args) + len(arguments.kwonlyargs) + len(arguments.posonlyargs)
        if arguments.args and arguments.args[0].arg in ("self", "cls"):
            count -= 1
        assert count <= MAX_PARAMETERS, f"{name} takes {count} parameters"
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ClassDef):
            public = [n for n in node.body if isinstance(n, ast.FunctionDef) and n.name[0] != "_"]
            assert len(public) <= MAX_PUBLIC_METHODS, f"{node.name} has {len(public)} methods"


@pytest.mark.parametrize(
    "source",
    [s for s in sources() if s.name.split(".")[2:3] and s.name.split(".")[2] in DOCUMENTED],
    ids=lambda s: s.name,
)
def test_public_names_are_documented(source: Source) -> None:
    assert ast.get_docstring(source.tree) or not source.text.strip(), "module"
    undocumented = [
        name
        for name, function in source.functions()
        if not any(part.startswith(("_", "<")) for part in name.split("."))
        and not ast.get_docstring(function)
        and not _is_declaration(function)
    ]
    classes = [
        node.name
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ClassDef) and node.name[0] != "_" and not ast.get_docstring(node)
    ]
    assert not undocumented + classes


def _is_declaration(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """A signature for type checkers only: its body is an ellipsis."""
    body = function.body
    return (
        len(body) == 1
        and isinstance(body[0], ast.Expr)
        and isinstance(body[0].value, ast.Constant)
        and body[0].value.value is ...
    )


def test_slots_come_back_in_one_place() -> None:
    """Outside the pools, only `req_release` and the profiler's clean-up free a request's slots."""
    callers = {
        source.name
        for source in sources()
        if source.name.startswith("sglang.srt.managers")
        and any(
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("free", "free_mamba_cache")
            for node in ast.walk(source.tree)
        )
    }
    assert callers == {
        "sglang.srt.managers.req_release",
        "sglang.srt.managers.scheduler_pp_mixin",
    }
