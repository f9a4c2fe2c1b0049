"""`Strategy.init_process_groups`: the one place where the groups of a run are made, whoever started the ranks."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import rpc

from drivetrain import DDP, Fabric, ProcessGroupError, SingleDevice
from drivetrain.cluster.cluster_info import ClusterInfo
from drivetrain.cluster.read_cluster import current_cluster
from drivetrain.strategies.process_group import join_process_group
from drivetrain.testing.fixtures import make_mlp
from tests.ranks.launched_programs import run

CPU = torch.device("cpu")


class OwnStore(DDP):
    """Meets in a file, with a backend and a timeout of its own."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def init_process_groups(self, cluster: ClusterInfo, stack: ExitStack) -> None:
        store = dist.FileStore(self.path, cluster.world_size)
        join_process_group(
            cluster, stack, backend="gloo", timeout_s=77, store=dist.PrefixStore("mine", store),
            options={"group_name": "mine"},
        )  # fmt: skip


class Pairs(DDP):
    """The default group, and a group of each two neighbours."""

    def init_process_groups(self, cluster: ClusterInfo, stack: ExitStack) -> None:
        super().init_process_groups(cluster, stack)
        pairs = [dist.new_group([first, first + 1]) for first in range(0, cluster.world_size, 2)]
        self.pair: Any = pairs[cluster.rank // 2]
        stack.callback(lambda: dist.destroy_process_group(self.pair))


class WithRpc(DDP):
    """Starts `torch.distributed.rpc` beside the group, and notes in which order things end."""

    def __init__(self) -> None:
        super().__init__()
        self.order: list[str] = []

    def init_process_groups(self, cluster: ClusterInfo, stack: ExitStack) -> None:
        stack.callback(lambda: self.order.append(f"the group is gone: {not dist.is_initialized()}"))
        super().init_process_groups(cluster, stack)
        rpc.init_rpc(f"worker{cluster.rank}", rank=cluster.rank, world_size=cluster.world_size)
        stack.callback(self._shut_down)

    def _shut_down(self) -> None:
        rpc.shutdown()
        self.order.append(f"rpc is shut down; the group is there: {dist.is_initialized()}")


def test_a_store_a_timeout_and_a_group_name_of_ones_own_arrive(ranks: Any, tmp_path: Path) -> None:
    """Users on a file system, or behind a firewall, could not bring their own rendezvous."""

    def in_rank(path: str) -> Any:
        strategy = OwnStore(path)
        strategy.open(current_cluster(), CPU)
        backend = dist.group.WORLD._get_backend(CPU)
        said = (dist.get_backend(), backend.options._timeout, strategy.collectives.agree([1.0]))
        total = strategy.collectives.all_reduce(torch.tensor(strategy.cluster.rank + 1), "sum")
        strategy.close()
        return *said, int(total), dist.is_initialized()

    expected = ("gloo", timedelta(seconds=77), [2.0], 3, False)
    assert ranks.run(in_rank, str(tmp_path / "store")) == [expected, expected]


def test_the_timeout_of_the_strategy_is_that_of_both_its_groups(ranks: Any) -> None:
    """A lost rank would be waited for half an hour, whatever was asked for."""

    def in_rank() -> Any:
        strategy: Any = DDP(timeout_s=41)
        strategy.open(current_cluster(), CPU)
        groups = (dist.group.WORLD, strategy.collectives.cpu_group)
        timeouts = [group._get_backend(CPU).options._timeout for group in groups]
        strategy.close()
        return timeouts

    assert ranks.run(in_rank) == [[timedelta(seconds=41)] * 2] * 2


def test_a_rank_that_does_not_come_is_an_error_after_the_timeout(ranks: Any, tmp_path: Path) -> None:
    """The others would wait for ever."""

    def in_rank(seen: Path) -> str:
        strategy = DDP(timeout_s=1)
        strategy.open(current_cluster(), CPU)
        strategy.collectives.barrier()
        if strategy.cluster.rank == 1:  # it lives, and is busy with something else
            while not seen.exists():
                time.sleep(0.02)
            return ""
        try:
            strategy.collectives.agree([1.0])
        except ProcessGroupError as error:
            return error.what
        finally:
            seen.touch()
        return "it came"

    first, _ = ranks.run(in_rank, tmp_path / "seen")
    assert first.startswith("Rank 1 has said nothing for 1 s"), first


def test_groups_beside_the_default_one_work_and_end_with_the_run(ranks: Any) -> None:
    """A subclass could not reduce over a part of the ranks."""

    def in_rank() -> Any:
        strategy = Pairs()
        strategy.open(current_cluster(), CPU)
        value = torch.tensor(10 ** dist.get_rank())
        dist.all_reduce(value, group=strategy.pair)
        total = strategy.collectives.all_reduce(torch.tensor(1), "sum")
        strategy.close()
        return int(value), int(total), dist.is_initialized()

    low, high = (11, 4, False), (1100, 4, False)
    assert ranks.run(in_rank, world=4) == [low, low, high, high]


def test_rpc_starts_beside_the_group_and_ends_before_it(ranks: Any) -> None:
    """A parameter server beside data-parallel ranks needs rpc; ended after the group, it waits for nobody."""

    def in_rank() -> Any:
        os.environ["TP_SOCKET_IFNAME"] = "lo"
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        strategy = WithRpc()
        strategy.open(current_cluster(), CPU)
        other = f"worker{1 - strategy.cluster.rank}"
        answer = rpc.rpc_sync(other, torch.add, args=(torch.tensor(40), 2))
        total = strategy.collectives.all_reduce(answer, "sum")
        strategy.close()
        return int(total), strategy.order

    order = ["rpc is shut down; the group is there: True", "the group is gone: True"]
    assert ranks.run(in_rank) == [(84, order)] * 2


def test_what_was_begun_is_ended_when_opening_fails(ranks: Any) -> None:
    """The next run in the process would find the rest of the one that failed."""

    class Fails(DDP):
        def init_process_groups(self, cluster: ClusterInfo, stack: ExitStack) -> None:
            super().init_process_groups(cluster, stack)
            raise KeyError("no server")

    def in_rank() -> Any:
        strategy = Fails()
        try:
            strategy.open(current_cluster(), CPU)
        except KeyError:
            return dist.is_initialized(), strategy.is_open
        return None

    assert ranks.run(in_rank) == [(False, False)] * 2


def test_a_group_that_fits_is_used_and_left_alive(ranks: Any) -> None:
    """A library would destroy what its user still needs."""

    def in_rank() -> Any:
        cluster = current_cluster()
        dist.init_process_group("gloo", timeout=timedelta(seconds=30))
        before = dist.group.WORLD
        strategy = DDP()
        strategy.open(cluster, CPU)
        is_same = dist.group.WORLD is before
        strategy.prepare(make_mlp())
        strategy.close()
        total = torch.tensor(1)
        dist.all_reduce(total)
        num_groups = len(dist.distributed_c10d._world.pg_map)
        return is_same, int(total), num_groups

    assert ranks.run(in_rank) == [(True, 2, 1)] * 2


@pytest.mark.parametrize(
    ("kind", "found", "needed"),
    [
        ("rank", "backend 'gloo', rank {other} of 2", "backend 'gloo', rank {rank} of 2"),
        ("world", "backend 'gloo', rank 0 of 1", "backend 'gloo', rank {rank} of 2"),
        ("backend", "backend 'gloo', rank {rank} of 2", "backend 'nccl', rank {rank} of 2"),
    ],
)
def test_a_group_that_does_not_fit_is_refused_and_left_alive(ranks: Any, kind: str, found: str, needed: str) -> None:
    """Ranks would reduce over others than the run's, or two ranks would take the same data."""

    def in_rank(kind: str) -> Any:
        cluster = current_cluster()
        if kind == "world":
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        else:
            rank = 1 - cluster.rank if kind == "rank" else cluster.rank
            dist.init_process_group("gloo", rank=rank, world_size=2)
        strategy = DDP(backend="nccl" if kind == "backend" else None)
        try:
            strategy.open(cluster, CPU)
        except ProcessGroupError as error:
            return error.code, str(error), dist.is_initialized(), strategy.is_open
        return None

    for rank, (code, text, is_alive, is_open) in enumerate(ranks.run(in_rank, kind)):
        assert (code, is_alive, is_open) == ("process-group", True, False)
        assert found.format(rank=rank, other=1 - rank) in text
        assert needed.format(rank=rank, other=1 - rank) in text


def test_one_device_beside_a_group_of_two_is_refused(ranks: Any) -> None:
    """Each rank would train on its own, unseen."""

    def in_rank() -> str:
        dist.init_process_group("gloo")
        try:
            Fabric(accelerator="cpu", devices=1).launch()
        except Exception as error:
            return f"{type(error).__name__} {error}"
        return "opened"

    for rank, text in enumerate(ranks.run(in_rank)):
        assert text.startswith(f"LaunchError [world-size] [rank {rank}/2]"), text
        assert "1 rank" in text and "started 2" in text


def test_a_strategy_can_be_opened_again_after_it_was_closed_and_not_before(ranks: Any) -> None:
    """A second fit in a process would fail, or meet what the first one left in the store."""

    def in_rank() -> Any:
        cluster, strategy, seen = current_cluster(), DDP(), []
        for _ in range(3):
            strategy.open(cluster, CPU)
            seen.append(strategy.collectives.agree([float(cluster.rank)])[0])
            try:
                strategy.open(cluster, CPU)
            except RuntimeError as error:
                seen.append(getattr(error, "code", None))
            strategy.close()
            strategy.close()
        return seen, dist.is_initialized()

    assert ranks.run(in_rank) == [([1.0, "launched-twice"] * 3, False)] * 2


def test_a_single_device_makes_no_group() -> None:
    """A script on one device would pay for a rendezvous, or open a port."""
    strategy = SingleDevice()
    strategy.open(current_cluster(), CPU)
    assert not dist.is_initialized()
    strategy.close()


SCRIPT = """
import sys
import warnings
from contextlib import ExitStack
import torch
import torch.distributed as dist
from torch.distributed import rpc
from drivetrain import DDP, Fabric

class WithRpc(DDP):
    def init_process_groups(self, cluster, stack):
        super().init_process_groups(cluster, stack)
        self.both = dist.new_group([0, 1])
        warnings.filterwarnings("ignore", message="You are using a Backend")  # torch's own rpc calls it the old way
        rpc.init_rpc(f"worker{cluster.rank}", rank=cluster.rank, world_size=cluster.world_size)
        stack.callback(rpc.shutdown)

def main(fabric):
    other = f"worker{1 - fabric.global_rank}"
    answer = rpc.rpc_sync(other, torch.add, args=(torch.tensor(fabric.global_rank), 1))
    dist.all_reduce(answer, group=fabric.strategy.both)
    return int(answer)

fabric = Fabric(accelerator="cpu", devices=2, strategy=WithRpc(start="spawn" if "function" in sys.argv else "script"))
if "function" in sys.argv:
    print(fabric.launch(main))
else:
    fabric.launch()
    answer = main(fabric)
    fabric.print(answer)
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["torchrun", "script", "function"])
def test_the_same_override_works_under_every_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Groups made for one launcher would have to be written again for another."""
    monkeypatch.setenv("TP_SOCKET_IFNAME", "lo")
    (tmp_path / "train.py").write_text(SCRIPT)
    command = ["train.py", *(["function"] if how == "function" else [])]
    if how == "torchrun":
        command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *command]
    code, out, err = run(*command, cwd=tmp_path)
    assert (code, out.strip()) == (0, "3"), err
