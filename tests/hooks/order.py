"""The order of a run as a nested listing: what is repeated is shown once, with how often it came."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tests.hooks.record import END_OF_SAVING, Notes


@dataclass(frozen=True)
class Bracket:
    """Hooks between which a part of a run lies.

    Attributes:
        title: Of the part.
        inside: The titles of the parts that it may be in; a run has none.
        opens: The hook with which it begins.
        closes_after: That with which it ends.
        closes_before: Or those before which it has ended.
    """

    title: str
    inside: tuple[str, ...]
    opens: str
    closes_after: str = ""
    closes_before: tuple[str, ...] = ()


RUN = ""
BRACKETS = (
    Bracket("sanity check", (RUN,), "on_sanity_check_start", "on_sanity_check_end"),
    Bracket("epoch", (RUN,), "on_train_epoch_start", closes_before=("on_train_epoch_start", "on_train_end")),
    Bracket("window", ("epoch",), "on_before_batch_transfer", "on_step_end"),
    Bracket("micro-batch", ("window",), "on_before_batch_transfer", "on_train_batch_end"),
    Bracket("optimizer step", ("micro-batch",), "on_before_optimizer_step", closes_before=("on_train_batch_end",)),
    Bracket("validation", ("epoch", "sanity check", RUN), "on_validation_model_zero_grad", "on_validation_model_train"),
    Bracket("batch", ("validation",), "on_before_batch_transfer", "on_validation_batch_end"),
    Bracket("test", (RUN,), "on_test_model_eval", "on_test_model_train"),
    Bracket("batch", ("test",), "on_before_batch_transfer", "on_test_batch_end"),
    Bracket("prediction", (RUN,), "on_predict_model_eval", "on_predict_model_train"),
    Bracket("batch", ("prediction",), "on_before_batch_transfer", "on_predict_batch_end"),
    Bracket("checkpoint", ("epoch", RUN), "saving", END_OF_SAVING),
)


@dataclass
class Row:
    """One event, and who heard of it in which order."""

    name: str
    owners: list[str]


@dataclass
class Part:
    """A part of a run, with the parts inside of it."""

    title: str
    bracket: Bracket | None = None
    inside: list[Row | Part] = field(default_factory=list)
    times: int = 1


def rows_of(notes: Notes) -> list[Row]:
    """Calls of one hook after another are one event, unless somebody would hear of it twice."""
    rows: list[Row] = []
    for owner, name in notes:
        if rows and rows[-1].name == name and owner not in rows[-1].owners:
            rows[-1].owners.append(owner)
        else:
            rows.append(Row(name, [owner]))
    return rows


def tree_of(rows: Iterable[Row]) -> Part:
    """The parts of a run."""
    stack = [Part(RUN)]
    for row in rows:
        while (bracket := stack[-1].bracket) is not None and row.name in bracket.closes_before:
            stack.pop()
        while (opened := _opened(stack[-1].title, row.name)) is not None:
            part = Part(opened.title, opened)
            stack[-1].inside.append(part)
            stack.append(part)
        stack[-1].inside.append(row)
        while (bracket := stack[-1].bracket) is not None and row.name == bracket.closes_after:
            stack.pop()
    assert len(stack) == 1, f"{stack[-1].title} has not ended"
    return _repeated(stack[0])


def _opened(title: str, name: str) -> Bracket | None:
    return next((one for one in BRACKETS if one.opens == name and title in one.inside), None)


def _repeated(part: Part) -> Part:
    """The same with equal neighbours as one."""
    inside: list[Row | Part] = []
    for one in part.inside:
        found = _repeated(one) if isinstance(one, Part) else one
        last = inside[-1] if inside else None
        if isinstance(found, Part) and isinstance(last, Part) and last.inside == found.inside:
            last.times += 1
        else:
            inside.append(found)
    return Part(part.title, part.bracket, inside, part.times)


def listing(part: Part, *, since: str = "", until: str = "", notes: dict[str, str] | None = None) -> list[str]:
    """Lines to read.

    Args:
        part: A run.
        since: The event before which nothing is shown.
        until: That after which nothing more is.
        notes: What is said beside an event, by its name.
    """
    lines: list[tuple[str, str]] = []
    _add(part.inside, 0, lines, notes or {})
    places = [left.strip() for left, _ in lines]
    if until:
        num = places.index(until) + 1
        lines = [*lines[:num], (_indent(lines[num - 1][0]) + "...", "")]
    if since:
        lines = [("...", ""), *lines[places.index(since) :]]
    width = max(len(left) for left, right in lines if right) + 2
    return [f"{left:{width}}{right}".rstrip() for left, right in lines]


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _add(parts: Sequence[Row | Part], depth: int, lines: list[tuple[str, str]], notes: dict[str, str]) -> None:
    indent = "    " * depth
    for one in parts:
        if isinstance(one, Row):
            lines.append((indent + one.name, ", ".join(one.owners) + notes.get(one.name, "")))
            continue
        is_last = one.title == "micro-batch" and any(isinstance(part, Part) for part in one.inside)
        title = f"last {one.title}" if is_last else one.title
        lines.append((f"{indent}{title}{f', {one.times} times' if one.times > 1 else ''}:", ""))
        _add(one.inside, depth + 1, lines, notes)
