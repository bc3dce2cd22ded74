"""What the profiler of an SGLang looks like, by its syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

MIXIN = "srt/managers/scheduler_pp_mixin.py"
SCHEDULER = "srt/managers/scheduler.py"
POOLS = "srt/mem_cache/memory_pool.py"
PROFILER = "profile_and_init_predictor"
# Pools of the scheduler that can be emptied as a whole, in the order in which it does so.
CLEARED = ("req_to_token_pool", "token_to_kv_pool_allocator")

AFFECTED = "affected"
FIXED = "fixed"
UNAFFECTED = "not affected"
NO_CHUNKING = "no dynamic chunking"
LATER = "later layout"
UNKNOWN = "unknown"
# Statuses of releases whose profiler and its caller have the shape that the change knows.
KNOWN = (AFFECTED, FIXED, UNAFFECTED)


class Diagnosis(NamedTuple):
    """Whether the profiler frees its Mamba slots, and why that is said."""

    status: str
    reason: str


class SlotFree(NamedTuple):
    """The statement `<pool>.free(<req>)` that gives a profiling request's slot back."""

    statement: ast.stmt
    pool: str
    req: str


class Handover(NamedTuple):
    """The statement after which every stage has stage 0's samples, and the names of their lists."""

    statement: ast.stmt
    samples: tuple[str, ...]


class NotRecognised(Exception):
    """The code does not have the shape that is known; the message says what is missing."""


def diagnose(package: Path) -> Diagnosis:
    """Whether an installation's profiler frees its Mamba slots."""
    path = package / MIXIN
    function = profiler(read(path)) if path.is_file() else None
    if function is None:
        return _without_profiler(package)
    if _calls(function, "free_mamba_cache"):
        return Diagnosis(FIXED, "the profiler frees each request's Mamba slot")
    pools = package / POOLS
    tree = parse(read(pools), POOLS) if pools.is_file() else ast.Module([], [])
    if not any(f.name == "free_mamba_cache" for f in _functions(tree)):
        if _free_takes_mamba_along(tree):
            return Diagnosis(UNAFFECTED, "freeing the request slot frees the Mamba slot too")
        return Diagnosis(UNKNOWN, "its pools have no free_mamba_cache")
    if not _calls(function, "free"):
        return Diagnosis(UNKNOWN, "its profiler frees nothing that is known")
    return Diagnosis(AFFECTED, "the profiler frees KV and request slot, never the Mamba slot")


def read(path: Path) -> str:
    """A source file's text with its own line ends. Raises NotRecognised if it is not UTF-8."""
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise NotRecognised(f"{path} is not UTF-8: {error}") from error


def parse(text: str, name: str) -> ast.Module:
    """The syntax tree. Raises NotRecognised on a syntax error."""
    try:
        return ast.parse(text)
    except SyntaxError as error:
        raise NotRecognised(f"{name} is not valid Python: {error}") from error


def profiler(text: str) -> ast.FunctionDef | None:
    """The profiling function of a mixin's source. Raises NotRecognised on a syntax error."""
    return next((f for f in _functions(parse(text, MIXIN)) if f.name == PROFILER), None)


def find_slot_free(text: str) -> SlotFree:
    """Where the Mamba slot is to be freed. Raises NotRecognised naming what is missing."""
    branch = next((s for s in _profiler(text).body if _is_first_rank(s)), None)
    if branch is None:
        raise NotRecognised(f"no branch for the first pipeline rank in {PROFILER}")
    loops = [s for s in ast.walk(branch) if isinstance(s, ast.For) and _slot_frees(s)]
    if len(loops) != 1:
        raise NotRecognised(f"expected one profiling loop that frees, found {len(loops)}")
    frees = _slot_frees(loops[0])
    if len(frees) != 1:
        raise NotRecognised(f"expected one free of the request slot, found {len(frees)}")
    return frees[0]


def find_handover(text: str) -> Handover:
    """Where the other stages wait for samples. Raises NotRecognised naming what is missing."""
    for statement in _profiler(text).body:
        if _is_first_rank(statement) or not _calls(statement, "broadcast_object_list"):
            continue
        for node in ast.walk(statement):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
                names = tuple(e.id for e in node.targets[0].elts if isinstance(e, ast.Name))
                if len(names) == 2:  # lengths and latencies; a failure is two empty lists
                    return Handover(statement, names)
    raise NotRecognised(f"no broadcast of the samples to the other stages in {PROFILER}")


def find_handler(text: str) -> ast.ExceptHandler:
    """Where the scheduler deals with a profiler that failed. Raises NotRecognised."""
    tree = parse(text, SCHEDULER)
    cleared = {ast.unparse(call.func) for call in _calls(tree, "clear")}
    unknown = [pool for pool in CLEARED if f"self.{pool}.clear" not in cleared]
    if unknown:
        raise NotRecognised(f"{SCHEDULER} nowhere clears its {unknown[0]}")
    tries = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Try) and any(_calls(s, PROFILER) for s in node.body)
    ]
    if len(tries) != 1:
        raise NotRecognised(f"expected one `try` around {PROFILER}, found {len(tries)}")
    (found,) = tries
    handler = found.handlers[0] if len(found.handlers) == 1 else None
    caught = handler.type if handler else None
    if handler is None or not (isinstance(caught, ast.Name) and caught.id == "Exception"):
        raise NotRecognised(f"expected one `except Exception` after {PROFILER}")
    return handler


def _profiler(text: str) -> ast.FunctionDef:
    function = profiler(text)
    if function is None:
        raise NotRecognised(f"{MIXIN} has no {PROFILER}")
    return function


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


def _slot_frees(loop: ast.For) -> list[SlotFree]:
    """Statements `<owner>.req_to_token_pool.free(<req>)` of the loop."""
    found: list[SlotFree] = []
    for node in ast.walk(loop):
        match node:
            case ast.Expr(
                value=ast.Call(
                    func=ast.Attribute(
                        value=ast.Attribute(value=ast.Name(id=owner), attr="req_to_token_pool"),
                        attr="free",
                    ),
                    args=[ast.Name(id=req)],
                    keywords=[],
                )
            ):
                found.append(SlotFree(node, f"{owner}.req_to_token_pool", req))
    return found
