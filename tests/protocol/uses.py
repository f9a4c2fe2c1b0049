"""Which test uses a name: found in the sources of the tests."""

from __future__ import annotations

import ast
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import drivetrain
from drivetrain.testing import fixtures
from tests.arch.source_tree import ROOT, dotted
from tests.protocol.names import OWN_NAMES, Group
from tests.protocol.present import class_named, position_of

# Last part of what a member is read from.
_RECEIVERS = {
    "Trainer": ("trainer",),
    "Fabric": ("fabric",),
    "Module": ("module", "model", "pl_module", "self"),
}
_FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
_LEFT_OUT = ("tests/docs/", "tests/hooks/")  # the second names all hooks, whatever it tests


@dataclass
class Unit:
    """A function or class at the top of a file.

    Attributes:
        file: Relative to the repository.
        name: Its own.
        nodes: All that is inside.
        users: Those that use it.
    """

    file: str
    name: str
    nodes: list[ast.AST]
    users: list[Unit] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.file}::{self.name}"

    @property
    def is_test(self) -> bool:
        """pytest runs it."""
        return self.name.startswith("test_") and Path(self.file).name.startswith("test_")


class Uses:
    """Where names are used by the tests, directly or by what a test uses."""

    def __init__(self) -> None:
        self.units: list[Unit] = []
        by_name: dict[tuple[str, str], Unit] = {}
        imports: dict[str, dict[str, tuple[str, str]]] = {}
        for path in sorted((ROOT / "tests").rglob("*.py")):
            file = path.relative_to(ROOT).as_posix()
            if file.startswith(_LEFT_OUT):
                continue
            tree = ast.parse(path.read_text(encoding="utf-8"))
            imports[file] = dict(_imports(tree))
            for node in tree.body:
                for name in _defined(node):
                    unit = Unit(file, name, list(ast.walk(node)))
                    self.units.append(unit)
                    by_name[file, name] = unit
        for unit in self.units:
            for name in {name for node in unit.nodes for name in _read(node)}:
                home = imports[unit.file].get(name, (unit.file, name))
                used = by_name.get(home)
                if used is not None and used is not unit:
                    used.users.append(unit)
        self._calls: dict[str, list[tuple[Unit, str]]] = defaultdict(list)
        self._positional: dict[tuple[str, int], list[Unit]] = defaultdict(list)
        self._reads: dict[str, list[tuple[Unit, str]]] = defaultdict(list)
        self._overrides: dict[str, list[tuple[Unit, set[str]]]] = defaultdict(list)
        self._texts: dict[str, list[Unit]] = defaultdict(list)
        self._names: dict[str, list[Unit]] = defaultdict(list)
        self._bases = self._all_bases()
        self._own = {
            (unit.file, node.name) for unit in self.units for node in unit.nodes if isinstance(node, _FUNCTION)
        }
        for unit in self.units:
            for node in unit.nodes:
                self._note(unit, node)

    def test_of(self, group: Group, name: str, kept: str = "") -> str:
        """`file::test` of a test that uses the name; empty for none.

        Args:
            group: Of the name.
            name: The name.
            kept: The answer, if it is one: so that a page does not change with each new test.
        """
        first = ""
        for units in self._places(group, name):
            tests = [test for unit in units if (test := self._test_above(unit))]
            if kept in [str(test) for test in tests]:
                return kept
            if tests and not first:  # the one whose name says that it is about it
                words = name.removeprefix("on_").split("_")
                first = str(max(tests, key=lambda one: (sum(word in one.name for word in words), str(one))))
        return first

    def _places(self, group: Group, name: str) -> Iterator[list[Unit]]:
        owner = group.owner.split(".")[-1]
        if group.kind == "argument":
            yield [unit for unit, called in self._calls[name] if called in (owner, OWN_NAMES.get(owner))]
            yield self._positional[owner, position_of(group, name)]
            if owner == "log":
                yield [unit for unit, called in self._calls[name] if called == "log_dict"]
            if owner == "LRSchedulerConfig":
                yield self._texts[name]
            if owner in ("Trainer", "Fabric"):  # by a function of the test that makes one
                yield [unit for unit, called in self._calls[name] if owner.lower() in called.lower()]
            users = {unit.file for own in (owner, OWN_NAMES.get(owner, "")) for unit in self._names[own]}
            made = [(unit, called) for unit, called in self._calls[name] if unit.file in users]
            yield [unit for unit, called in made if (unit.file, called) in self._own or called in ("dict", "fit")]
        elif group.kind == "member":
            endings = _RECEIVERS[owner]
            yield [unit for unit, source in self._reads[name] if source.lower().endswith(endings)]
            yield [unit for unit, source in self._reads[name] if owner in self._bases.get(source, {source})]
        elif group.kind == "override":
            yield [unit for unit, bases in self._overrides[name] if owner in bases]
            if owner != "DataModule" and name.startswith("on_"):  # among the events that a test expects
                yield self._texts[name]
        else:
            yield self._names[OWN_NAMES.get(name, name).split(".")[-1]]

    def _note(self, unit: Unit, node: ast.AST) -> None:
        if isinstance(node, ast.Call):
            called = dotted(node.func).split(".")[-1]
            for index, argument in enumerate(node.args):
                if isinstance(argument, ast.Starred):
                    break
                self._positional[called, index].append(unit)
            for keyword in node.keywords:
                self._calls[keyword.arg or ""].append((unit, called))
            if called == "getattr" and len(node.args) > 1 and isinstance(node.args[1], ast.Constant):
                self._reads[str(node.args[1].value)].append((unit, _source(node.args[0])))
        elif isinstance(node, ast.Dict):
            for key in node.keys:
                if isinstance(key, ast.Constant):
                    self._calls[str(key.value)].append((unit, "dict"))
        elif isinstance(node, ast.Attribute):
            self._reads[node.attr].append((unit, _source(node.value)))
            self._names[node.attr].append(unit)
        elif isinstance(node, ast.Name):
            self._names[node.id].append(unit)
        elif isinstance(node, ast.ClassDef):
            for part in node.body:
                names = [part.name] if isinstance(part, _FUNCTION) else []
                if isinstance(part, ast.Assign):
                    names = [one.id for target in part.targets for one in ast.walk(target) if isinstance(one, ast.Name)]
                for name in names:
                    self._overrides[name].append((unit, self._bases[node.name]))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            self._texts[node.value].append(unit)

    def _all_bases(self) -> dict[str, set[str]]:
        """Of each class of the tests all classes above it, by name."""
        direct: dict[str, set[str]] = defaultdict(set)
        for unit in self.units:
            for node in unit.nodes:
                if isinstance(node, ast.ClassDef):
                    direct[node.name] |= {dotted(base).split(".")[-1] for base in node.bases}
        above = {name: set(bases) for name, bases in direct.items()}
        for bases in above.values():
            waiting = deque(bases)
            while waiting:
                for base in direct.get(waiting.popleft(), ()):
                    if base not in bases:
                        bases.add(base)
                        waiting.append(base)
        for bases in above.values():
            bases |= {kind for base in bases for kind in _kinds(base)}
        return above

    def _test_above(self, unit: Unit) -> Unit | None:
        """The test that this is, or the first that uses it."""
        seen, waiting = {id(unit)}, deque([unit])
        while waiting:
            one = waiting.popleft()
            if one.is_test:
                return one
            for user in one.users:
                if id(user) not in seen:
                    seen.add(id(user))
                    waiting.append(user)
        return None


def _kinds(base: str) -> tuple[str, ...]:
    """What a class of the package is: tests derive from its shipped modules and callbacks too."""
    cls = class_named(base) or getattr(fixtures, base, None)
    if not isinstance(cls, type):
        return ()
    owners = {"Module": drivetrain.Module, "DataModule": drivetrain.DataModule, "Callback": drivetrain.Callback}
    return tuple(name for name, owner in owners.items() if issubclass(cls, owner))


def _imports(tree: ast.Module) -> Iterator[tuple[str, tuple[str, str]]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests."):
            file = str(node.module).replace(".", "/") + ".py"
            for alias in node.names:
                yield alias.asname or alias.name, (file, alias.name)


def _defined(node: ast.stmt) -> list[str]:
    if isinstance(node, _FUNCTION | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [one.id for target in node.targets for one in ast.walk(target) if isinstance(one, ast.Name)]
    return []


def _read(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Name):
        return [node.id]
    return [node.arg] if isinstance(node, ast.arg) else []  # a fixture


def _source(node: ast.expr) -> str:
    """The last part of what is before the dot: `trainer` of `self.trainer`, `Trainer` of a call of it."""
    if isinstance(node, ast.Call):
        return dotted(node.func).split(".")[-1]
    return dotted(node).split(".")[-1]
