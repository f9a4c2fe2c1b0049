"""The table of `docs/reliability.md`: one line for each row of faults, written by the run that tried it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

HEADER = "| row | fault | held | fails at most (95 % bound) |\n|---|---|---|---|\n"
_LINE = re.compile(r"^\| (?P<name>R-\d+) \|.*\|$", re.MULTILINE)


@dataclass(frozen=True)
class Result:
    """What came out of the trials of one row.

    Attributes:
        name: Of the row.
        title: What was done.
        held: Trials in which everything held.
        trials: Of all.
    """

    name: str
    title: str
    held: int
    trials: int

    @property
    def bound(self) -> str:
        """The share of failures that so many clean trials leave possible, at 95 %: three over their number."""
        return f"{100 * min(1.0, 3 / self.trials):.3g} %" if self.held == self.trials else "-"

    @property
    def line(self) -> str:
        """Of the table."""
        return f"| {self.name} | {self.title} | {self.held} of {self.trials} | {self.bound} |"


def update(page: Path, results: list[Result]) -> None:
    """Replace the lines of some rows in the table of a page; those of others stay."""
    text = page.read_text(encoding="utf-8")
    assert HEADER in text, f"{page} has no table"
    before, after = text.split(HEADER)
    lines = {match["name"]: match[0] for match in _LINE.finditer(after)}
    rest = _LINE.sub("", after).lstrip("\n")
    lines |= {result.name: result.line for result in results}
    table = "\n".join(lines[name] for name in sorted(lines))
    page.write_text(f"{before}{HEADER}{table}\n\n{rest}".rstrip() + "\n", encoding="utf-8")
