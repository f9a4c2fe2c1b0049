"""Logged values over ranks: numbers alone where the names are the same, and right where they are not."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from drivetrain.comm.collectives import Collectives, GroupCollectives
from drivetrain.loop.reduced_values import Said, reduce_values
from drivetrain.testing.comm_counter import CommCounter
from drivetrain.testing.rank_runner import RankRunner
from tests.ranks.open_fabric import open_fabric

REDUCTIONS = ("mean", "sum", "min", "max")


def sums_of(rank: int, index: int) -> tuple[float, float]:
    """Of one name on one rank: a sum, and its weight."""
    return (rank + 1.0) * (index - 2.5), rank + 1.0 + index


def value_of(reduction: str, parts: list[tuple[float, float]]) -> float:
    """By the definition."""
    totals = [total for total, _ in parts]
    if reduction == "mean":
        return sum(totals) / sum(weight for _, weight in parts)
    return {"sum": sum, "min": min, "max": max}[reduction](totals)  # type: ignore[operator]


def said_of(index: int) -> Said:
    """The options of a name; each third is not reduced."""
    return Said(f"v{index}", REDUCTIONS[index % 4], index % 3 != 2, True)


def reduce_in_rank(num_names: int, kind: str) -> dict[str, Any]:
    """In a rank: over both ways, what comes out, and how many messages there were."""
    with open_fabric() as fabric:
        shared: Any = fabric.collectives
        sent = GroupCollectives(torch.device("cpu"), cpu_group=shared.cpu_group)
        rank, indices = shared.rank, list(range(num_names))
        if kind == "other order" and rank == 1:
            indices.reverse()
        if kind == "other names":
            indices = indices[rank:]
        said = {f"v{index}": said_of(index) for index in indices}
        if kind == "other options" and rank == 1:
            said = {name: one._replace(in_logger=False) for name, one in said.items()}
        own = {f"v{index}": sums_of(rank, index) for index in indices}
        found: dict[str, Any] = {}
        ways: dict[str, Collectives] = {"memory": shared, "group": sent}
        for way, collectives in ways.items():
            with CommCounter() as counter:
                values, told = reduce_values(collectives, own, dict(said))
            found[way] = values, {name: tuple(one) for name, one in told.items()}, sum(counter.calls.values())
        return found


@pytest.mark.parametrize("num_names", [0, 1, 7, 8, 20])
@pytest.mark.parametrize("world", [2, 3])
def test_values_of_the_same_names_are_reduced_by_numbers_alone(ranks: RankRunner, num_names: int, world: int) -> None:
    """Each row of the loggers would cost two messages of pickled names, also where nothing was logged."""
    expected = {}
    for index in range(num_names):
        parts = [sums_of(rank, index) for rank in range(world)]
        said = said_of(index)
        expected[f"v{index}"] = value_of(said.reduction, parts if said.is_reduced else parts[:1])
    for result in ranks.run(reduce_in_rank, num_names, "same", world=world):
        for way, num_messages in (("memory", 0), ("group", 1 if num_names < 8 else 2)):
            values, said_by_name, num_sent = result[way]
            assert values == pytest.approx(expected, abs=0, rel=1e-15) and num_sent == num_messages
            assert said_by_name == {f"v{index}": tuple(said_of(index)) for index in range(num_names)}


def test_names_in_another_order_are_the_same_names(ranks: RankRunner) -> None:
    """A number would be added to that of another name."""
    left, right = ranks.run(reduce_in_rank, 5, "other order")
    assert left["memory"][0] == right["memory"][0] and left["memory"][2] == right["memory"][2] == 0
    assert left["memory"][0]["v0"] == (sums_of(0, 0)[0] + sums_of(1, 0)[0]) / (sums_of(0, 0)[1] + sums_of(1, 0)[1])


@pytest.mark.parametrize("kind", ["other names", "other options"])
@pytest.mark.parametrize("num_names", [1, 9])
def test_what_only_some_ranks_logged_is_there_on_all(ranks: RankRunner, kind: str, num_names: int) -> None:
    """Numbers of different names would be added up, or ranks would wait for each other."""
    left, right = ranks.run(reduce_in_rank, num_names, kind)
    for way in ("memory", "group"):
        assert left[way] == right[way] and left[way][2] > 0
        assert set(left[way][0]) == {f"v{index}" for index in range(num_names)}
        parts = [sums_of(rank, 0) for rank in range(1 if kind == "other names" else 2)]
        assert left[way][0]["v0"] == value_of("mean", parts)
