"""Imports run down."""

from __future__ import annotations

from collections.abc import Iterable

from tests.arch.source_tree import PACKAGE, Source, imported_modules, package_sources

FLOORS = (
    ("base",),
    ("cluster", "device", "precision", "loggers", "profilers", "checkpoint"),
    ("comm", "launch", "data"),
    ("strategies",),
    ("fabric",),
    ("loop",),
    ("callbacks",),
    ("trainer",),
    ("tuner",),
    ("cli", "testing"),
    ("lightning",),
)
FLOOR_OF = {folder: floor for floor, folders in enumerate(FLOORS) for folder in folders}


def upward_imports(sources: Iterable[Source]) -> list[str]:
    """Imports that do not run down: to the same floor or a higher one, outside of the file's own folder."""
    sources = list(sources)
    known = frozenset(source.module for source in sources)
    found = []
    for source in sources:
        if source.folder == "":
            continue
        for line, module in imported_modules(source, known):
            parts = module.split(".")
            if parts[0] != PACKAGE or module == f"{PACKAGE}.__version__":
                continue
            folder = parts[1] if len(parts) > 1 else ""
            if folder != source.folder and FLOOR_OF.get(folder, len(FLOORS)) >= FLOOR_OF[source.folder]:
                found.append(f"{source.path}:{line} (floor {FLOOR_OF[source.folder]}) imports {module}")
    return found


def import_circles(sources: Iterable[Source]) -> list[list[str]]:
    """Groups of files that import each other: strongly connected components of more than one file (Tarjan 1972)."""
    sources = list(sources)
    known = frozenset(source.module for source in sources)
    graph = {
        source.module: sorted({name for _, name in imported_modules(source, known) if name in known})
        for source in sources
        if source.folder != ""
    }
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    circles: list[list[str]] = []

    def visit(module: str) -> None:
        number[module] = lowest[module] = len(number)
        path.append(module)
        for target in graph.get(module, ()):
            if target not in number:
                visit(target)
                lowest[module] = min(lowest[module], lowest[target])
            elif target in path:
                lowest[module] = min(lowest[module], number[target])
        if lowest[module] == number[module]:
            index = path.index(module)
            group = path[index:]
            del path[index:]
            if len(group) > 1 or module in graph.get(module, ()):
                circles.append(sorted(group))

    for module in sorted(graph):
        if module not in number:
            visit(module)
    return circles


def test_every_folder_has_a_floor() -> None:
    """A new folder would stand outside of the house."""
    assert {source.folder for source in package_sources()} - {""} == set(FLOOR_OF)
    roots = {source.path for source in package_sources() if source.folder == ""}
    assert roots == {f"{PACKAGE}/__init__.py", f"{PACKAGE}/__main__.py"}


def test_a_file_imports_only_from_lower_floors_or_its_own_folder() -> None:
    """A lower part would depend on a higher one, or two siblings on each other."""
    assert upward_imports(package_sources()) == []


def test_no_two_files_import_each_other_in_a_circle() -> None:
    """Files that can only be understood, and imported, together."""
    assert import_circles(package_sources()) == []


def test_an_upward_import_is_found_wherever_it_hides() -> None:
    """The test above would pass whatever the files import."""
    hidden = Source(
        "drivetrain/comm/a.py",
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from drivetrain.strategies.ddp import DDP\n"
        "def f():\n    import drivetrain.data.loader\n    from drivetrain import launch\n"
        "    importlib.import_module('drivetrain.cli.main')\n    from drivetrain import DDP\n",
    )
    assert sorted(text.split("imports ")[1] for text in upward_imports([hidden])) == [
        "drivetrain.DDP",
        "drivetrain.cli.main",
        "drivetrain.data.loader",
        "drivetrain.launch",
        "drivetrain.strategies.ddp",
    ]


def test_a_downward_import_is_allowed() -> None:
    """The test above would refuse everything."""
    fine = Source(
        "drivetrain/comm/a.py", "from drivetrain.base import tree\nfrom drivetrain.comm.b import B\nimport os\n"
    )
    assert upward_imports([fine]) == []


def test_a_circle_of_three_files_is_found() -> None:
    """A circle longer than two files would pass."""
    names = "abc"
    files = [
        Source(f"drivetrain/base/{name}.py", f"def f():\n    from drivetrain.base import {names[(i + 1) % 3]}\n")
        for i, name in enumerate(names)
    ]
    assert import_circles(files) == [["drivetrain.base.a", "drivetrain.base.b", "drivetrain.base.c"]]
