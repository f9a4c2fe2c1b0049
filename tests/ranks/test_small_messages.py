"""The small messages of decisions, over shared memory and over a group: the same values, none of them on the wire."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest
import torch

from drivetrain.comm.collectives import GroupCollectives
from drivetrain.comm.shared_board import Usual
from drivetrain.testing.comm_counter import CommCounter
from drivetrain.testing.rank_runner import RankRunner
from tests.ranks.open_fabric import open_fabric

OPS = ("sum", "max", "min", "mean")


def agree_over_both() -> dict[str, Any]:
    """In a rank: what both ways give, and what they send."""
    with open_fabric() as fabric:
        shared: Any = fabric.collectives
        sent = GroupCollectives(torch.device("cpu"), cpu_group=shared.cpu_group)
        values = [0.25 * shared.rank, -1.0, 1e300]
        with CommCounter() as counter:
            over_memory = [shared.agree(values, op) for op in OPS]
        over_group = [sent.agree(values, op) for op in OPS]
        long = shared.agree([float(shared.rank)] * 100)
        return {"memory": over_memory, "group": over_group, "sent": sum(counter.calls.values()), "long": long}


@pytest.mark.parametrize("world", [2, 4])
def test_a_decision_is_the_same_over_shared_memory_and_over_a_group(ranks: RankRunner, world: int) -> None:
    """Runs on one machine and on several would differ."""
    results = ranks.run(agree_over_both, world=world)
    for result in results:
        assert result["memory"] == result["group"] == results[0]["memory"]
        assert result["sent"] == 0
        assert result["long"] == [float(sum(range(world)))] * 100


def sum_usual(rounds: int) -> dict[str, Any]:
    """In a rank: sums of which most, but not all, are the usual ones, over both ways."""
    with open_fabric() as fabric:
        shared: Any = fabric.collectives
        sent = GroupCollectives(torch.device("cpu"), cpu_group=shared.cpu_group)
        usual, draw = Usual((2.0, 0.0), shared.world_size), random.Random(shared.rank)
        sums: dict[str, list[Any]] = {"memory": [], "group": [], "is_usual": []}
        for _ in range(rounds):
            own = usual.values if draw.random() < 0.8 else (3.0, 1.0)
            over_memory, over_group = (one.start_usual(own, usual)() for one in (shared, sent))
            sums["memory"].append(list(over_memory))
            sums["group"].append(list(over_group))
            sums["is_usual"].append((over_memory is usual.sums, over_group is usual.sums))
        return sums


@pytest.mark.parametrize("world", [2, 4])
def test_usual_sums_are_told_from_others_alike_over_both_ways(ranks: RankRunner, world: int) -> None:
    """Ranks of several machines would make another step than those of one."""
    results = ranks.run(sum_usual, 100, world=world)
    for result in results:
        assert result["memory"] == result["group"] == results[0]["memory"]
        assert result["is_usual"] == [(sums == [2.0 * world, 0.0],) * 2 for sums in result["memory"]]
    assert 0 < sum(is_usual for is_usual, _ in results[0]["is_usual"]) < 100


def agree_out_of_step(rounds: int) -> bool:
    """In a rank: many messages, some read late, by ranks that run ahead of each other and fall behind."""
    with open_fabric() as fabric:
        collectives = fabric.collectives
        draw = random.Random(collectives.rank)
        same = random.Random(0)
        pending: list[tuple[int, Any]] = []
        is_right = True
        for number in range(rounds):
            pending.append((number, collectives.start_agreement([float(number), float(collectives.rank)])))
            if draw.random() < 0.01:
                time.sleep(0.002 * draw.random())
            if same.random() < 0.5:
                while pending:
                    sent, finish = pending.pop(draw.randrange(len(pending)))
                    world = collectives.world_size
                    is_right &= finish() == [float(sent * world), world * (world - 1) / 2]
        return is_right


@pytest.mark.parametrize("world", [2, 4])
def test_ranks_that_run_ahead_read_no_message_of_another_decision(ranks: RankRunner, world: int) -> None:
    """A fast rank's next message would be taken for the one before, or overwrite it."""
    assert all(ranks.run(agree_out_of_step, 1000, world=world))
