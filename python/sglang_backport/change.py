"""The change itself: two places in one file, made, kept and undone."""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

from sglang_backport.analysis import MIXIN, Anchors, NotRecognised, find_anchors

BACKUP_SUFFIX = ".before-sglang-backport"
MARK = "# sglang_backport:"


def patched_text(text: str) -> str:
    """The mixin's source with both halves of the change.

    The Mamba slot of each profiling request is freed after its KV and before its request slot; a
    failure on the first stage reaches the others as an empty list of samples, so that each of them
    raises where it would wait for ever. Raises NotRecognised when a place is not found.
    """
    anchors = find_anchors(text)
    lines = text.splitlines(keepends=True)
    if anchors.loop.end_lineno is None or anchors.broadcast.end_lineno is None:
        raise NotRecognised("the syntax tree has no line numbers")
    edits: list[tuple[int, int, list[str]]] = [
        (anchors.broadcast.end_lineno, anchors.broadcast.end_lineno, _raise_lines(anchors)),
        (anchors.loop.lineno - 1, anchors.loop.end_lineno, _guarded_loop(lines, anchors)),
    ]
    for start, end, replacement in sorted(edits, reverse=True):
        lines[start:end] = replacement
    changed = "".join(lines)
    ast.parse(changed)  # never write what does not compile
    return changed


def apply_change(package: Path) -> str:
    """Change the file and keep a backup; "applied" or "already applied"."""
    path = package / MIXIN
    text = path.read_text(encoding="utf-8")
    if MARK in text:
        return "already applied"
    changed = patched_text(text)
    _backup(path).write_text(text, encoding="utf-8")
    path.write_text(changed, encoding="utf-8")
    return "applied"


def undo_change(package: Path) -> str:
    """Put the backup back; "undone" or "not applied". Refuses if the file has changed since."""
    path = package / MIXIN
    backup = _backup(path)
    text = path.read_text(encoding="utf-8")
    if MARK not in text:
        return "not applied"
    if not backup.is_file():
        raise NotRecognised(f"{backup} is gone")
    original = backup.read_text(encoding="utf-8")
    if patched_text(original) != text:
        raise NotRecognised(f"{path} was changed after the backport; undo it by hand")
    path.write_text(original, encoding="utf-8")
    backup.unlink()
    return "undone"


def _backup(path: Path) -> Path:
    return path.with_name(path.name + BACKUP_SUFFIX)


def _raise_lines(anchors: Anchors) -> list[str]:
    indent = " " * anchors.broadcast.col_offset
    return [
        f"{indent}{MARK} the first stage could not profile; do not wait for its samples\n",
        f"{indent}if not {anchors.samples[0]}:\n",
        f'{indent}    raise RuntimeError("profiling failed on the first pipeline stage")\n',
    ]


def _guarded_loop(lines: list[str], anchors: Anchors) -> list[str]:
    """The loop inside a `try`, with the three lines before the request slot is freed."""
    start, end = anchors.loop.lineno - 1, anchors.loop.end_lineno
    body = lines[start:end]
    _refuse_multiline_strings(body)
    inner = " " * (anchors.free.col_offset)
    three = [
        f"{inner}{MARK} a hybrid model's request holds a Mamba slot too\n",
        f"{inner}if {anchors.req}.mamba_pool_idx is not None:\n",
        f"{inner}    {anchors.pool}.free_mamba_cache({anchors.req})\n",
    ]
    at = anchors.free.lineno - 1 - start
    body[at:at] = three
    indent = " " * anchors.loop.col_offset
    guarded = ["    " + line if line.strip() else line for line in body]
    return [
        f"{indent}try:\n",
        *guarded,
        f"{indent}except Exception:\n",
        f'{indent}    logger.exception("[PP Dynamic Chunk] profiling failed on the first stage")\n',
        *(f"{indent}    {name}.clear()\n" for name in anchors.samples),
    ]


def _refuse_multiline_strings(body: list[str]) -> None:
    """Indenting lines must not change a string."""
    text = "if True:\n" + "".join(" " + line for line in body)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.STRING and token.start[0] != token.end[0]:
            raise NotRecognised("a string of several lines inside the profiling loop")
