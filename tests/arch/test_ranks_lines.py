"""Whoever calls what communicates can read which ranks have to."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from tests.arch.source_tree import FunctionNode, Source, dotted, functions_of, package_sources

COLLECTIVES_METHODS = frozenset({"barrier", "all_reduce", "all_gather", "broadcast", "gather_objects", "agree"})
DIST_FUNCTIONS = frozenset(
    [
        "all_gather",
        "all_gather_into_tensor",
        "all_gather_object",
        "all_reduce",
        "all_to_all",
        "all_to_all_single",
        "barrier",
        "broadcast",
        "broadcast_object_list",
        "destroy_process_group",
        "gather",
        "gather_object",
        "init_device_mesh",
        "init_process_group",
        "monitored_barrier",
        "new_group",
        "new_subgroups",
        "reduce",
        "reduce_scatter",
        "reduce_scatter_tensor",
        "scatter",
        "scatter_object_list",
    ]
)


def communicates(function: FunctionNode) -> bool:
    """Its body calls a collective by name."""
    for node in ast.walk(function):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        owner = dotted(node.func.value).split(".")[-1]
        if owner in ("collectives", "_collectives") and node.func.attr in COLLECTIVES_METHODS:
            return True
        if owner in ("dist", "distributed") and node.func.attr in DIST_FUNCTIONS:
            return True
    return False


def silent_about_ranks(sources: Iterable[Source]) -> list[str]:
    """Public functions and methods that communicate and have no `Ranks:` line."""
    found = []
    for source in sources:
        for owner, function in functions_of(source.tree):
            is_special = function.name.startswith("__") and function.name.endswith("__")
            is_private = function.name.startswith("_") and not is_special
            if is_private or (owner is not None and owner.name.startswith("_")) or not communicates(function):
                continue
            text = ast.get_docstring(function) or ""
            if is_special and owner is not None:
                text += "\n" + (ast.get_docstring(owner) or "")
            if not any(line.strip().startswith("Ranks:") for line in text.splitlines()):
                found.append(f"{source.path}:{function.lineno} {function.name}")
    return found


def test_every_public_function_that_communicates_says_which_ranks_call_it() -> None:
    """A deadlock, because one rank did not know that it had to call."""
    assert silent_about_ranks(package_sources()) == []


def test_a_silent_function_is_found() -> None:
    """The test above would pass whatever the docstrings say."""
    source = Source(
        "drivetrain/loop/a.py",
        "class A:\n"
        "    def f(self):\n        '''Text.'''\n        self.trainer.collectives.barrier()\n"
        "    def g(self):\n        '''Text.\n\n        Ranks: all.\n        '''\n        self.collectives.agree([1])\n"
        "    def _h(self):\n        self.collectives.agree([1])\n"
        "def k():\n    dist.all_reduce(1)\n",
    )
    assert silent_about_ranks([source]) == ["drivetrain/loop/a.py:2 f", "drivetrain/loop/a.py:13 k"]
