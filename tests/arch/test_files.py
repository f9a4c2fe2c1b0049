"""Files and functions that fit a reader's head, with names that say something."""

from __future__ import annotations

import ast
import re

from tests.arch.source_tree import ROOT, FunctionNode, package_sources, python_files

MAX_LINES = 400
MAX_STATEMENTS = 40
_EMPTY = ("util", "common", "misc", "helper", "manager", "connector", "plugin", "mixin")
EMPTY_WORDS = frozenset([*_EMPTY, *(f"{word}s" for word in _EMPTY)])


def words_of(name: str) -> set[str]:
    """`DataModuleHelper` and `data_module_helper` as words."""
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)}


def num_statements(function: ast.AST) -> int:
    """Statements inside a function at any depth, its docstring not counted."""
    nodes = sum(isinstance(node, ast.stmt) for node in ast.walk(function)) - 1
    return nodes - (ast.get_docstring(function) is not None)  # type: ignore[arg-type]


def test_no_file_is_longer_than_400_lines() -> None:
    """A file that nobody reads to its end."""
    lengths = {
        path.relative_to(ROOT).as_posix(): len(path.read_text(encoding="utf-8").splitlines())
        for path in python_files("src", "tests", "examples", "benchmarks")
    }
    assert {path: length for path, length in lengths.items() if length > MAX_LINES} == {}


def test_no_function_has_more_than_40_statements() -> None:
    """A function that does several things."""
    found = {
        f"{source.path}:{node.lineno} {node.name}": num_statements(node)
        for source in package_sources()
        for node in ast.walk(source.tree)
        if isinstance(node, FunctionNode) and num_statements(node) > MAX_STATEMENTS
    }
    assert found == {}


def test_no_name_is_an_empty_word() -> None:
    """A name that says nothing about what is inside."""
    found = []
    for source in package_sources():
        found += [source.path for part in source.path.split("/") if words_of(part.removesuffix(".py")) & EMPTY_WORDS]
        found += [
            f"{source.path}:{node.lineno} {node.name}"
            for node in ast.walk(source.tree)
            if isinstance(node, (ast.ClassDef, FunctionNode)) and words_of(node.name) & EMPTY_WORDS
        ]
    assert found == []


def test_statements_are_counted_at_any_depth() -> None:
    """A long function could hide in nested blocks."""
    tree = ast.parse("def f():\n    'doc'\n    if a:\n        b\n        def g():\n            return 1\n")
    assert num_statements(tree.body[0]) == 4


def test_names_are_split_into_words() -> None:
    """`IOHelper` would pass, or `uncommon` would not."""
    assert words_of("IOHelper") == {"io", "helper"}
    assert words_of("data_utils2") == {"data", "utils", "2"}
    assert not words_of("uncommon") & EMPTY_WORDS
