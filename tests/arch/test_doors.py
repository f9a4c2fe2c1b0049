"""The world enters at one door each."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from tests.arch.source_tree import ROOT, Source, dotted, imported_modules, package_sources, python_files

ENVIRONMENT_ROOMS = frozenset({"cluster", "launch", "cli"})
DISTRIBUTED_ROOMS = frozenset({"comm", "strategies", "launch", "testing"})
ENVIRONMENT = frozenset({"os.environ", "os.environb", "os.getenv", "os.getenvb", "os.putenv", "os.unsetenv"})


def uses_of(source: Source, is_meant: Callable[[str], bool]) -> Iterator[str]:
    """Lines that import or name something."""
    lines = {line for line, module in imported_modules(source) if is_meant(module)}
    lines |= {
        node.lineno for node in ast.walk(source.tree) if isinstance(node, ast.Attribute) and is_meant(dotted(node))
    }
    return (f"{source.path}:{line}" for line in sorted(lines))


def names_environment(name: str) -> bool:
    return any(name == door or name.startswith(f"{door}.") for door in ENVIRONMENT)


def names_distributed(name: str) -> bool:
    return name == "torch.distributed" or name.startswith("torch.distributed.")


def names_mock(name: str) -> bool:
    return name == "unittest.mock" or name.startswith(("unittest.mock.", "mock."))


def test_the_environment_is_read_in_three_rooms_only() -> None:
    """A part that behaves differently by a variable that nobody handed to it."""
    found = [
        use
        for source in package_sources()
        if source.folder not in ENVIRONMENT_ROOMS
        for use in uses_of(source, names_environment)
    ]
    assert found == []


def test_torch_distributed_is_used_in_four_rooms_only() -> None:
    """A part that talks to other ranks past the collectives that it was handed."""
    found = [
        use
        for source in package_sources()
        if source.folder not in DISTRIBUTED_ROOMS
        for use in uses_of(source, names_distributed)
    ]
    assert found == []


def test_nothing_is_mocked() -> None:
    """A test that holds for a mock and not for what the mock stands for."""
    found = [
        use
        for path in python_files("src", "tests")
        for use in uses_of(Source(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")), names_mock)
    ]
    assert found == []


def test_every_way_through_a_door_is_seen() -> None:
    """A door could be passed by writing the import differently."""
    for text in ("import os\nos.environ['A']", "from os import environ", "import os\ndef f():\n    os.getenv('A')"):
        assert list(uses_of(Source("drivetrain/base/a.py", text), names_environment)), text
    for text in (
        "import torch.distributed as dist",
        "from torch import distributed",
        "def f():\n    from torch.distributed.tensor import DTensor",
        "import torch\ntorch.distributed.barrier()",
    ):
        assert list(uses_of(Source("drivetrain/base/a.py", text), names_distributed)), text
