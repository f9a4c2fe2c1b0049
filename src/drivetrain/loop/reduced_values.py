"""Sums of logged values over ranks: numbers alone where all ranks logged the same names, whatever it is otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple

from drivetrain.comm.collectives import Collectives

_FIRST_PAIRS = 7  # names whose sums go along with the question whether the names are the same

Sums = tuple[float, float]


class Said(NamedTuple):
    """What other ranks have to know of a logged name."""

    name: str
    reduction: str
    is_reduced: bool
    in_logger: bool


def reduce_values(
    collectives: Collectives, own: Mapping[str, Sums], said: dict[str, Said]
) -> tuple[dict[str, float], dict[str, Said]]:
    """Reduce sums over ranks, and divide. A rank may have logged names that others have not.

    Ranks: all (one small message; more where there are many names, or other ones on some rank).

    Args:
        collectives: Over which.
        own: Sum of value x weight, and sum of weights, for each name of this rank.
        said: More about these names.

    Returns:
        The values, and what was said about their names, of all ranks.
    """
    if collectives.world_size == 1:
        return {name: finish(said[name].reduction, [sums]) for name, sums in own.items()}, said
    names = sorted(own)
    numbers = [number for name in names for number in own[name]]
    first = numbers[: 2 * _FIRST_PAIRS]
    rows = collectives.gather_numbers(
        [_mark_of([said[name] for name in names]), *first, *[0.0] * (2 * _FIRST_PAIRS - len(first))]
    )
    if any(row[0] != rows[0][0] for row in rows):
        return _reduce_mixed(collectives, own, said)
    columns = [list(row[1:]) for row in rows]
    if len(names) > _FIRST_PAIRS:
        rest = collectives.gather_numbers(numbers[2 * _FIRST_PAIRS :])
        columns = [[*column, *row] for column, row in zip(columns, rest, strict=True)]
    values = {}
    for index, name in enumerate(names):
        parts = [(column[2 * index], column[2 * index + 1]) for column in columns[:: collectives.num_alike]]
        values[name] = finish(said[name].reduction, parts if said[name].is_reduced else parts[:1])
    return {name: values[name] for name in own}, said


def finish(reduction: str, parts: Sequence[Sums]) -> float:
    """The value of sums, or extremes, of several ranks."""
    if reduction == "mean":
        weight = sum(weight for _, weight in parts)
        return sum(total for total, _ in parts) / weight if weight else float("nan")
    totals = [total for total, _ in parts]
    return sum(totals) if reduction == "sum" else min(totals) if reduction == "min" else max(totals)


def _mark_of(said: Sequence[Said]) -> float:
    """A number that stands for names and their options: 48 bits of a hash, exact in float64."""
    return float(int.from_bytes(blake2b(repr([tuple(one) for one in said]).encode(), digest_size=6).digest(), "little"))


def _reduce_mixed(
    collectives: Collectives, own: Mapping[str, Sums], said: dict[str, Said]
) -> tuple[dict[str, float], dict[str, Said]]:
    """Whichever rank logged a name: the first that did says what it means."""
    of_all = collectives.gather_objects({name: (own[name], said[name]) for name in own})
    rows = [of_all[start : start + collectives.num_alike] for start in range(0, len(of_all), collectives.num_alike)]
    told = [{name: one[name] for one in reversed(row) for name in one} for row in rows]
    values: dict[str, float] = {}
    for name in {name: None for one in told for name in one}:
        of_ranks = [one[name] for one in told if name in one]
        first = said[name] = of_ranks[0][1]
        values[name] = finish(first.reduction, [part for part, _ in (of_ranks if first.is_reduced else of_ranks[:1])])
    return values, said
