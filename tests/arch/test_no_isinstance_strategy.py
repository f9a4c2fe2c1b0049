"""Strategies are final and flat, and nobody asks for their class."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from tests.arch.source_tree import FunctionNode, Source, dotted, package_sources

OWN_METHODS = ("prepare", "call", "gradient_sync", "save_state", "load_state")
SPELLING_METHODS = {"__init__", "open", "init_process_groups", "__subclasshook__"}


def strategy_classes(sources: Iterable[Source]) -> dict[str, ast.ClassDef]:
    """`Strategy` and every class below it, by name."""
    nodes = [node for source in sources for node in ast.walk(source.tree) if isinstance(node, ast.ClassDef)]
    found = {node.name: node for node in nodes if node.name == "Strategy"}
    for _ in nodes:
        found.update({node.name: node for node in nodes if set(bases_of(node)) & set(found)})
    return found


def bases_of(node: ast.ClassDef) -> list[str]:
    return [dotted(base).split(".")[-1] for base in node.bases]


def is_abstract(node: ast.ClassDef) -> bool:
    """It derives from `ABC` itself, or has abstract methods of its own."""
    decorators = [
        dotted(decorator) for part in node.body if isinstance(part, FunctionNode) for decorator in part.decorator_list
    ]
    return "ABC" in bases_of(node) or any(name.split(".")[-1] == "abstractmethod" for name in decorators)


def concrete_strategies(sources: Iterable[Source]) -> dict[str, ast.ClassDef]:
    return {name: node for name, node in strategy_classes(sources).items() if not is_abstract(node)}


def spellings(sources: Iterable[Source]) -> dict[str, ast.ClassDef]:
    """Concrete strategies once more, with arguments as scripts spell them: a folder of their own."""
    sources = list(sources)
    own = concrete_strategies(source for source in sources if source.folder != "lightning")
    return {name: node for name, node in concrete_strategies(sources).items() if name not in own}


def own_strategies(sources: Iterable[Source]) -> dict[str, ast.ClassDef]:
    sources = list(sources)
    return {name: node for name, node in concrete_strategies(sources).items() if name not in spellings(sources)}


def class_questions(source: Source, names: Iterable[str]) -> Iterator[str]:
    """Places that ask whether something is of one of the classes."""
    names = set(names)
    for node in ast.walk(source.tree):
        asked: list[ast.AST] = []
        if isinstance(node, ast.Call) and dotted(node.func) in ("isinstance", "issubclass"):
            asked = list(node.args[1:2])
        elif isinstance(node, ast.Compare) and any(
            isinstance(part, ast.Call) and dotted(part.func) == "type" for part in (node.left, *node.comparators)
        ):
            asked = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchClass):
            asked = [node.cls]
        if any(isinstance(part, (ast.Name, ast.Attribute)) and dotted(part).split(".")[-1] in names
               for one in asked for part in ast.walk(one)):  # fmt: skip
            yield f"{source.path}:{node.lineno}"


def test_nobody_asks_for_the_class_of_a_strategy() -> None:
    """A user's strategy would be treated differently from ours."""
    names = concrete_strategies(package_sources())
    assert [place for source in package_sources() for place in class_questions(source, names)] == []


def test_a_concrete_strategy_says_itself_what_makes_it_one() -> None:
    """A strategy that silently syncs, wraps or saves as another one does."""
    strategies = own_strategies(package_sources())
    assert strategies, "no strategy was found"
    missing = {
        name: [method for method in OWN_METHODS if method not in {getattr(part, "name", "") for part in node.body}]
        for name, node in strategies.items()
    }
    assert {name: methods for name, methods in missing.items() if methods} == {}


def test_no_strategy_inherits_from_a_concrete_one() -> None:
    """A change of one strategy that changes another."""
    strategies = concrete_strategies(package_sources())
    own = own_strategies(package_sources())
    assert {name: bases_of(node) for name, node in own.items() if set(bases_of(node)) & set(strategies)} == {}


def test_a_familiar_spelling_of_a_strategy_changes_its_arguments_alone() -> None:
    """A script that changes its imports would run another strategy than one that is written for this library."""
    found = spellings(package_sources())
    assert found, "no spelling was found"
    methods = {name: {getattr(part, "name", "") for part in node.body} - {""} for name, node in found.items()}
    assert {name: own for name, own in methods.items() if not own <= SPELLING_METHODS} == {}
    assert set().union(*(bases_of(node) for node in found.values())) <= set(own_strategies(package_sources()))


def test_a_question_for_the_class_is_found_in_each_form() -> None:
    """The test above would pass whatever is asked."""
    for text in ("isinstance(x, (int, ddp.DDP))", "type(x) is DDP", "match x:\n    case DDP():\n        pass"):
        assert list(class_questions(Source("drivetrain/loop/a.py", text), ["DDP"])), text
