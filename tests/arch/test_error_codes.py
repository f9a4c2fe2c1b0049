"""Each error has a code, and each code an entry in docs/errors.md."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from tests.arch.source_tree import ROOT, FunctionNode, Source, dotted, package_sources

CODE = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


def literals(node: ast.AST) -> set[str]:
    return {part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str)}


def codes_in(sources: Iterable[Source]) -> dict[str, str]:
    """Each code with a place that has it: `code="..."` in calls and in defaults."""
    found: dict[str, str] = {}
    for source in sources:
        for node in ast.walk(source.tree):
            values: list[ast.expr] = []
            if isinstance(node, ast.Call):
                values = [keyword.value for keyword in node.keywords if keyword.arg == "code"]
            elif isinstance(node, FunctionNode):
                values = [
                    default
                    for argument, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
                    if argument.arg == "code" and default is not None
                ]
            for value in values:
                found.update(dict.fromkeys(literals(value), f"{source.path}:{value.lineno}"))
    return found


def error_classes(sources: Iterable[Source]) -> dict[str, bool]:
    """Names of the error tree, and whether the class has a code of its own as a default."""
    classes = [node for source in sources for node in ast.walk(source.tree) if isinstance(node, ast.ClassDef)]
    has_default: dict[str, bool] = {"DrivetrainError": False}
    for _ in classes:
        for node in classes:
            bases = [dotted(base).split(".")[-1] for base in node.bases]
            for base in bases:
                if base in has_default and node.name not in has_default:
                    own = bool(codes_in([Source("a.py", ast.unparse(node))])) and any(
                        isinstance(part, FunctionNode) and part.name == "__init__" for part in node.body
                    )
                    has_default[node.name] = own or has_default[base]
    return has_default


def errors_without_code(sources: Iterable[Source]) -> list[str]:
    """Places where an error is made and no code is passed."""
    sources = list(sources)
    classes = error_classes(sources)
    found = []
    for source in sources:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Raise) and node.exc is not None and dotted(node.exc).split(".")[-1] in classes:
                found.append(f"{source.path}:{node.lineno} raises a class")
            elif isinstance(node, ast.Call) and not classes.get(dotted(node.func).split(".")[-1], True):
                has_code = any(keyword.arg in ("code", None) for keyword in node.keywords)
                found += [] if has_code else [f"{source.path}:{node.lineno} {dotted(node.func)}"]
    return sorted(found)


def documented_codes() -> list[str]:
    text = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    return re.findall(r"^## `?([^`\n]+?)`?$", text, flags=re.MULTILINE)


def test_every_code_of_the_source_is_documented() -> None:
    """An error whose code leads nowhere."""
    found = codes_in(package_sources())
    assert {code: place for code, place in found.items() if code not in documented_codes()} == {}


def test_every_documented_code_is_in_the_source() -> None:
    """A page that describes an error which nothing raises."""
    assert set(documented_codes()) - set(codes_in(package_sources())) == set()


def test_the_page_lists_each_code_once_in_order() -> None:
    """A code that is looked up and not found where the alphabet has it."""
    assert documented_codes() == sorted(set(documented_codes()))


def test_codes_are_kebab_case() -> None:
    """Codes that have to be copied to be written right."""
    assert [code for code in codes_in(package_sources()) if not CODE.fullmatch(code)] == []


def test_every_error_is_raised_with_a_code() -> None:
    """An error that nothing but its text tells from another."""
    assert errors_without_code(package_sources()) == []


def test_a_missing_code_is_found() -> None:
    """The test above would pass whatever is raised."""
    errors = Source(
        "drivetrain/base/errors.py",
        "class DrivetrainError(Exception): ...\nclass A(DrivetrainError): ...\n"
        "class B(A):\n    def __init__(self, *, code: str = 'b'): ...\n",
    )
    raising = Source(
        "drivetrain/base/x.py", "def f():\n    raise A('x')\n    raise A\n    raise B()\n    raise A(code='a')\n"
    )
    assert errors_without_code([errors, raising]) == [
        "drivetrain/base/x.py:2 A",
        "drivetrain/base/x.py:3 raises a class",
    ]
    assert set(codes_in([errors, raising])) == {"a", "b"}
