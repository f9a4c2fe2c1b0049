"""The package's sources as syntax trees, for the tests of this folder."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "drivetrain"

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Source:
    """One Python file.

    Attributes:
        path: Relative to the folder that holds the package, e.g. `drivetrain/base/tree.py`.
        text: Its content.
    """

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @property
    def module(self) -> str:
        """Its dotted name; a package's `__init__.py` has the package's."""
        return self.path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")

    @property
    def folder(self) -> str:
        """The folder below the package, e.g. `base`; empty for files of the package itself."""
        parts = self.path.split("/")
        return parts[1] if len(parts) > 2 else ""


@lru_cache
def package_sources() -> tuple[Source, ...]:
    """Every file of the package."""
    src = ROOT / "src"
    paths = sorted((src / PACKAGE).rglob("*.py"))
    return tuple(Source(path.relative_to(src).as_posix(), path.read_text(encoding="utf-8")) for path in paths)


def python_files(*folders: str) -> list[Path]:
    """Python files below these folders of the repository."""
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def dotted(node: ast.expr) -> str:
    """`a.b.c` of a chain of attributes; calls and subscripts inside give an empty first part."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    parts.append(node.id if isinstance(node, ast.Name) else "")
    return ".".join(reversed(parts))


def imported_modules(source: Source, known: frozenset[str] = frozenset()) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything that a file imports, also in functions and under `TYPE_CHECKING`.

    Args:
        source: The file.
        known: Names of modules, so that `from a.b import c` counts as `a.b.c` where that is one.
    """
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{source.path}:{node.lineno} imports relatively"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield (
                    node.lineno,
                    full if full in known or node.module in (PACKAGE, "os", "torch") else str(node.module),
                )
        elif isinstance(node, ast.Call) and dotted(node.func).split(".")[-1] in ("import_module", "import_extra"):
            for argument in node.args[:1]:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield node.lineno, argument.value


def functions_of(
    tree: ast.AST, owner: ast.ClassDef | None = None
) -> Iterator[tuple[ast.ClassDef | None, FunctionNode]]:
    """Functions and methods, each with the class that holds it; not those inside functions."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, FunctionNode):
            yield owner, node
        elif isinstance(node, ast.ClassDef):
            yield from functions_of(node, node)
        elif isinstance(node, (ast.If, ast.Try, ast.With)):
            yield from functions_of(node, owner)
