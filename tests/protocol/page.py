"""The page about names: for each whether drivetrain has it, and which test uses it."""

from __future__ import annotations

import re

from tests.protocol.absent import ABSENT
from tests.protocol.names import FORMER_ARGUMENTS, FORMER_HOOKS, GROUPS, OWN_NAMES, Group
from tests.protocol.present import is_there
from tests.protocol.uses import Uses

INTRODUCTION = """# Names people know

The names that scripts written for Lightning use, counted in public programs, the commonest first in each table:
whether drivetrain has them, and a test that uses each. Those that are there under another name are in
`drivetrain.lightning` under the familiar one. The page is made by `python -m tests.protocol --write
docs/protocol.md`, which looks at the classes and reads the sources of the tests; a test holds that it is up to date.
That a name is there says that it can be written: what behaves differently is on the pages about coming from
[Lightning](migrating/lightning.md) and from [Lightning Fabric](migrating/fabric.md).

A dash says that no test was found to use the name itself.
"""


def page(former: str = "") -> str:
    """All of it.

    Args:
        former: The page as it was; a test that it names stays, if it still uses the name.
    """
    uses, kept = Uses(), named_tests(former)
    num_all = sum(len(list(group)) for group in GROUPS)
    missing = [(group, name) for group in GROUPS for name in group if not is_there(group, name)]
    parts = [INTRODUCTION, f"{num_all - len(missing)} of {num_all} names are there.\n"]
    if missing:
        rows = [f"| `{name}` | {group.title} | {ABSENT.get((group.title, name), '')} |" for group, name in missing]
        parts += ["## What is not there\n", "\n".join(["| name | of | instead |", "|---|---|---|", *rows]), ""]
    for group in GROUPS:
        parts += [f"## {group.title}\n", _table(group, uses, kept), ""]
    parts += [
        "## Of versions long gone\n",
        "Arguments of `Trainer` that are refused with an error that says what to write today:",
        ", ".join(f"`{name}`" for name in FORMER_ARGUMENTS.split()) + ".\n",
        "Methods of modules or callbacks that are refused in the same way:",
        ", ".join(f"`{name}`" for name in FORMER_HOOKS.split()) + ".",
    ]
    return "\n".join(parts) + "\n"


def named_tests(text: str) -> dict[tuple[str, str], str]:
    """The heading and name to the test of each row of a page."""
    found, heading = {}, ""
    for line in text.splitlines():
        heading = line.removeprefix("## ") if line.startswith("## ") else heading
        row = re.fullmatch(r"\| `(\w+)` \| .* \| `(tests/\S+::\w+)` \|", line)
        if row is not None:
            found[heading, row[1]] = row[2]
    return found


def _table(group: Group, uses: Uses, kept: dict[tuple[str, str], str]) -> str:
    lines = ["| name | there | test |", "|---|---|---|"]
    for name in group:
        if is_there(group, name):
            test = uses.test_of(group, name, kept.get((group.title, name), ""))
            own = OWN_NAMES.get(name) if group.kind == "class" else None
            said = f"as `{own}`" if own is not None and own.split(".")[-1] != name else "yes"
            lines.append(f"| `{name}` | {said} | {f'`{test}`' if test else '-'} |")
        else:
            lines.append(f"| `{name}` | no | |")
    return "\n".join(lines)
