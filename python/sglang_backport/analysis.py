"""What the profiler of an SGLang looks like, by its syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

MIXIN = "srt/managers/scheduler_pp_mixin.py"
POOLS = "srt/mem_cache/memory_pool.py"
PROFILER = "profile_and_init_predictor"

AFFECTED = "affected"
FIXED = "fixed"
UNAFFECTED = "not affected"
NO_CHUNKING = "no dynamic chunking"
LATER = "later layout"
UNKNOWN = "unknown"


class Diagnosis(NamedTuple):
    """A verdict with its reason."""

    status: str
    reason: str


class Anchors(NamedTuple):
    """Places in the mixin that the change goes by.

    free: the statement that gives back the request slot. loop: the profiling loop. broadcast: the
    statement after which every stage has stage 0's samples. samples: the names of the lists.
    """

    free: ast.stmt
    pool: str
    req: str
    loop: ast.For
    broadcast: ast.stmt
    samples: tuple[str, ...]


class NotRecognised(Exception):
    """The profiler does not have the shape that is known; the message says what is missing."""


def diagnose(package: Path) -> Diagnosis:
    """Whether an installation's profiler frees its Mamba slots."""
    path = package / MIXIN
    function = profiler(path.read_text(encoding="utf-8")) if path.is_file() else None
    if function is None:
        return _without_profiler(package)
    if _calls(function, "free_mamba_cache"):
        return Diagnosis(FIXED, "the profiler frees each request's Mamba slot")
    pools = package / POOLS
    tree = ast.parse(pools.read_text(encoding="utf-8")) if pools.is_file() else ast.Module([], [])
    if not any(f.name == "free_mamba_cache" for f in _functions(tree)):
        if _free_takes_mamba_along(tree):
            return Diagnosis(UNAFFECTED, "freeing the request slot frees the Mamba slot too")
        return Diagnosis(UNKNOWN, "its pools have no free_mamba_cache")
    if not _calls(function, "free"):
        return Diagnosis(UNKNOWN, "its profiler frees nothing that is known")
    return Diagnosis(AFFECTED, "the profiler frees KV and request slot, never the Mamba slot")


def profiler(text: str) -> ast.FunctionDef | None:
    """The profiling function of a mixin's source. Raises NotRecognised on a syntax error."""
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise NotRecognised(f"{MIXIN} is not valid Python: {error}") from error
    return next((f for f in _functions(tree) if f.name == PROFILER), None)


def find_anchors(text: str) -> Anchors:
    """The places to change. Raises NotRecognised naming what is not as expected."""
    function = profiler(text)
    if function is None:
        raise NotRecognised(f"{MIXIN} has no {PROFILER}")
    first = next((s for s in function.body if _is_first_rank(s)), None)
    if first is None:
        raise NotRecognised(f"no branch for the first pipeline rank in {PROFILER}")
    loops = [s for s in first.body if isinstance(s, ast.For) and _request_frees(s)]
    if len(loops) != 1:
        raise NotRecognised(f"expected one profiling loop that frees, found {len(loops)}")
    frees = _request_frees(loops[0])
    if len(frees) != 1:
        raise NotRecognised(f"expected one free of the request slot, found {len(frees)}")
    broadcast, samples = _broadcast(function)
    free, pool, req = frees[0]
    return Anchors(free, pool, req, loops[0], broadcast, samples)


def _without_profiler(package: Path) -> Diagnosis:
    for path in sorted((package / "srt").rglob("*.py")):
        text = path.read_text(encoding="utf-8", errors="replace")
        if "dynamic chunking" in text.lower() and ("Profil" in text or "ChunkSiz" in text):
            where = path.relative_to(package)
            return Diagnosis(LATER, f"dynamic chunking lives in {where}")
    return Diagnosis(NO_CHUNKING, "nothing profiles at start-up")


def _functions(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def _calls(node: ast.AST, name: str) -> list[ast.Call]:
    return [
        call
        for call in ast.walk(node)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == name
    ]


def _free_takes_mamba_along(tree: ast.Module) -> bool:
    """`free(..., free_mamba_cache=True)`: the layout before the two were separated."""
    for function in _functions(tree):
        names = [a.arg for a in function.args.args]
        if function.name == "free" and "free_mamba_cache" in names:
            defaults = function.args.defaults
            place = names.index("free_mamba_cache") - (len(names) - len(defaults))
            default = defaults[place] if place >= 0 else None
            return isinstance(default, ast.Constant) and default.value is True
    return False


def _is_first_rank(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and any(
        isinstance(node, ast.Attribute) and node.attr == "is_first_rank"
        for node in ast.walk(statement.test)
    )


def _request_frees(loop: ast.For) -> list[tuple[ast.stmt, str, str]]:
    """Statements `<pool>.free(<req>)` of the loop, the pool being a `req_to_token_pool`."""
    found: list[tuple[ast.stmt, str, str]] = []
    for node in ast.walk(loop):
        if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
            continue
        call = node.value
        if isinstance(call.func, ast.Attribute) and call.func.attr == "free":
            owner = call.func.value
            named = isinstance(owner, ast.Attribute) and owner.attr == "req_to_token_pool"
            if named and len(call.args) == 1 and isinstance(call.args[0], ast.Name):
                assert isinstance(owner, ast.Attribute)
                if isinstance(owner.value, ast.Name):
                    pool = f"{owner.value.id}.{owner.attr}"
                    found.append((node, pool, call.args[0].id))
    return found


def _broadcast(function: ast.FunctionDef) -> tuple[ast.stmt, tuple[str, ...]]:
    for statement in function.body:
        if _is_first_rank(statement) or not _calls(statement, "broadcast_object_list"):
            continue
        for node in ast.walk(statement):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
                names = _names(node.targets[0].elts)
                if names:
                    return statement, names
    raise NotRecognised(f"no broadcast of the samples to the other stages in {PROFILER}")


def _names(elements: Sequence[ast.expr]) -> tuple[str, ...]:
    return tuple(e.id for e in elements if isinstance(e, ast.Name))
