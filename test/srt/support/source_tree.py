"""The package's sources as syntax trees, for tests of its shape."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PACKAGE_ROOT = Path(__file__).resolve().parents[3] / "python"


@dataclass(frozen=True)
class Source:
    """One module: dotted name, path, text, tree."""

    name: str
    path: Path
    text: str
    tree: ast.Module

    def functions(self) -> list[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
        """All functions and methods with their qualified names."""
        found: list[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]] = []

        def visit(node: ast.AST, prefix: str) -> None:
            for child in ast.iter_child_nodes(node):
                if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    found.append((prefix + child.name, child))
                    visit(child, f"{prefix}{child.name}.<locals>.")
                elif isinstance(child, ast.ClassDef):
                    visit(child, f"{prefix}{child.name}.")
                else:
                    visit(child, prefix)

        visit(self.tree, "")
        return found

    def imports(self, *, lazy: bool = True) -> set[str]:
        """Modules imported at run time (not under TYPE_CHECKING); without `lazy` only on import."""
        found: set[str] = set()

        def visit(node: ast.AST) -> None:
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                    for other in child.orelse:
                        visit(other)
                    continue
                if not lazy and isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    continue
                if isinstance(child, ast.Import):
                    found.update(alias.name for alias in child.names)
                elif isinstance(child, ast.ImportFrom) and child.module:
                    found.add(child.module)
                    found.update(f"{child.module}.{alias.name}" for alias in child.names)
                visit(child)

        visit(self.tree)
        return found


@cache
def sources(package: str = "sglang") -> tuple[Source, ...]:
    """All modules of a package, by name."""
    found = []
    for path in sorted((PACKAGE_ROOT / package).rglob("*.py")):
        parts = path.relative_to(PACKAGE_ROOT).with_suffix("").parts
        name = ".".join(parts).removesuffix(".__init__")
        text = path.read_text()
        found.append(Source(name, path, text, ast.parse(text)))
    return tuple(found)
