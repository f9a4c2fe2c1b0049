"""What the pages about coming from other libraries name on drivetrain's side is there."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest

import drivetrain
from drivetrain.fabric.fabric_module import FabricModule
from drivetrain.fabric.window import Window
from drivetrain.fabric.windows import _SteppingWindow
from tests.arch.source_tree import ROOT, dotted
from tests.protocol.present import found

OWNERS: dict[str, Any] = {
    "drivetrain": None, "fabric": drivetrain.Fabric, "trainer": drivetrain.Trainer, "self": drivetrain.Module,
    "module": drivetrain.Module, "model": FabricModule, "window": type("AnyWindow", (_SteppingWindow, Window), {}),
}  # fmt: skip
PAGES = sorted((ROOT / "docs" / "migrating").glob("*.md"))


def cells(text: str) -> Iterator[str]:
    """The cells of tables that speak of drivetrain: the last one of each row, all where it says that it is the same."""
    for line in text.splitlines():
        if line.startswith("| ") and " | " in line:
            parts = line.strip("| ").split(" | ")
            yield parts[-1]
            if parts[-1].startswith("the same"):
                yield parts[0]


def claims(cell: str) -> Iterator[tuple[str, list[str]]]:
    """Each `owner.name` or `Name` of the code in a cell, and the keywords with which it is called."""
    for code in re.findall(r"`([^`]+)`", cell):
        try:
            tree = ast.parse(code.replace("...", "0"), mode="eval")
        except SyntaxError:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                yield dotted(node.func), [keyword.arg or "" for keyword in node.keywords]
            elif isinstance(node, ast.Attribute | ast.Name):
                yield dotted(node), []


def wrong(name: str, keywords: list[str]) -> str:
    """What of a claim is not so; empty if all is, or if it is of nothing that is looked at."""
    first, _, rest = name.partition(".")
    if first == "drivetrain" or not rest:
        value = found(rest or first) if name != "drivetrain" else drivetrain
    else:
        value = OWNERS.get(first)
        for part in rest.split(".") if value is not None else ():
            member = getattr(value, part, None)
            if isinstance(value, type) and member is None:
                return f"{name}: {value.__name__} has no {part}"
            value = member
            if isinstance(value, property):
                return ""
    if value is None or not keywords:
        return f"{name} is not there" if value is None and first == "drivetrain" else ""
    unknown = [one for one in keywords if one not in inspect.signature(value).parameters]
    return f"{name} takes no {', '.join(unknown)}" if unknown else ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_says_is_there(page: Any) -> None:
    """A reader would write what a table says, and get an error."""
    read = [claim for cell in cells(page.read_text(encoding="utf-8")) for claim in claims(cell)]
    assert len([name for name, _ in read if name.partition(".")[0] in OWNERS]) > 5
    assert [said for name, keywords in read if (said := wrong(name, keywords))] == []


def test_a_wrong_claim_is_seen() -> None:
    """The test above would pass whatever the pages say."""
    assert wrong("fabric.no_such", []) and wrong("drivetrain.NoSuch", []) and wrong("drivetrain.CLI", ["no_such"])
    assert wrong("fabric.launch", ["max_restarts"]) == wrong("Fabric", ["devices"]) == wrong("anything", ["x"]) == ""
    assert list(claims("`f(x, a=1)` and `b.c`")) == [("f", ["a"]), ("f", []), ("x", []), ("b.c", []), ("b", [])]
    assert list(cells("| `a` | `b` |\n| `c` | the same |\n")) == ["`b`", "the same", "`c`"]
