"""Ranks that live as long as a test session."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from drivetrain import Fabric
from drivetrain.cluster.read_cluster import current_cluster
from drivetrain.testing.comm_counter import CommCounter, parameter_bytes
from drivetrain.testing.fixtures import make_mlp
from drivetrain.testing.rank_runner import RankCallError, RankRunner

pytestmark = pytest.mark.slow


def sum_of_ranks() -> tuple[int, int]:
    dist.init_process_group("gloo")
    total = torch.tensor(dist.get_rank() + 1)
    dist.all_reduce(total)
    return os.getpid(), int(total)  # the group is left: the runner has to end it


def test_calls_of_any_size_follow_each_other_in_the_same_processes(ranks: RankRunner) -> None:
    """Each test would pay for new processes, or meet the group of the one before."""
    first, second, third = (ranks.run(sum_of_ranks, world=world) for world in (2, 1, 2))
    assert [total for _, total in first + second + third] == [3, 3, 1, 3, 3]
    assert first == third
    assert len({pid for pid, _ in first}) == 2


def test_a_call_is_told_who_it_is_and_only_for_its_time(ranks: RankRunner) -> None:
    """A rank would be taken for another, or a later call for a rank."""

    def look() -> Any:
        os.environ["LEFT_BEHIND"] = "1"
        return current_cluster()

    clusters = ranks.run(look, world=2)
    assert [(c.rank, c.world_size, c.local_rank, c.launched_by) for c in clusters] == [
        (0, 2, 0, "environment"),
        (1, 2, 1, "environment"),
    ]
    assert ranks.run(lambda: "LEFT_BEHIND" in os.environ, world=2) == [False, False]


def leave_open(path: Path) -> None:
    """A fabric that saves and is not closed, as that of a `Trainer`."""
    fabric = Fabric(accelerator="cpu", devices=current_cluster().world_size)
    fabric.launch()
    fabric.save(path, {"step": 1})


def test_the_watch_over_the_ranks_of_a_call_ends_with_it(ranks: RankRunner, tmp_path: Path) -> None:
    """A later call of the same processes could not save: they would take themselves for ranks that were ended."""
    for world in (2, 1, 2):
        ranks.run(leave_open, tmp_path / str(world), world=world)


def test_errors_of_all_ranks_come_back_in_one(ranks: RankRunner) -> None:
    """Only rank 0's half of a failure would be seen."""

    def fail() -> None:
        raise KeyError(f"rank {os.environ['RANK']}")

    with pytest.raises(RankCallError, match="2 of 2 ranks failed") as caught:
        ranks.run(fail, world=2)
    assert [str(error) for error in caught.value.errors.values()] == ["'rank 0'", "'rank 1'"]
    assert all(f"rank {rank}" in text and __file__ in text for rank, text in caught.value.texts.items())
    assert ranks.run(int, world=2) == [0, 0]


def test_a_call_without_end_shows_where_it_is_and_ranks_are_replaced() -> None:
    """A deadlock would stop the session, and nobody would see where."""

    def hold_on_to_it() -> int:
        if os.environ["RANK"] == "1":
            time.sleep(60)
        return 1

    with RankRunner(2) as runner:
        with pytest.raises(RankCallError, match="1 did not come to an end") as caught:
            runner.run(hold_on_to_it, timeout_s=1)
        assert "in hold_on_to_it" in caught.value.texts[1]
        assert runner.run(int) == [0, 0]


def test_a_rank_that_dies_is_named_and_replaced() -> None:
    """The call would wait for an answer that never comes."""

    def die() -> None:
        if os.environ["RANK"] == "0":
            os._exit(3)

    with RankRunner(2) as runner:
        with pytest.raises(RankCallError, match="died with exit code 3"):
            runner.run(die)
        assert runner.run(int) == [0, 0]


def test_more_ranks_than_there_are_is_an_error(ranks: RankRunner) -> None:
    """The call would run on fewer."""
    with pytest.raises(ValueError, match="world=9"):
        ranks.run(int, world=9)


def test_collectives_of_ddp_are_counted_in_calls_and_bytes(ranks: RankRunner) -> None:
    """A sync too many, or none, would not be seen."""

    def count() -> Any:
        dist.init_process_group("gloo")
        wrapped = nn.parallel.DistributedDataParallel(make_mlp())
        x = torch.ones(3, 8, dtype=torch.float64)
        with CommCounter() as counter:
            with wrapped.no_sync():
                wrapped(x).sum().backward()
            before = counter.num_calls()
            wrapped(x).sum().backward()
            dist.barrier()
        counts = counter.counts()
        total = counter.num_bytes()
        counter.clear()
        return before, counts["allreduce_"].calls, counts["allreduce_"].bytes, counts["barrier"].calls, total

    expected = parameter_bytes(make_mlp())
    assert ranks.run(count, world=2) == [(0, 1, expected, 1, expected)] * 2


def test_what_a_rank_gives_is_counted_not_what_it_gets(ranks: RankRunner) -> None:
    """Gathers would look as large as the world."""

    def count() -> dict[str, int]:
        dist.init_process_group("gloo")
        own, all_of_them = torch.ones(4), torch.zeros(8)
        with CommCounter() as counter:
            dist.all_gather_single(all_of_them, own)
            dist.all_gather([torch.zeros(4), torch.zeros(4)], own)
            dist.broadcast(own, 0)
        return dict(counter.bytes)

    (counted, _) = ranks.run(count, world=2)
    assert counted == {"_allgather_base_": 16, "allgather_": 16, "broadcast_": 16}
