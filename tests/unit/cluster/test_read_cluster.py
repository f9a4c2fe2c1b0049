"""Who a process is, from an environment."""

from __future__ import annotations

import pytest

from drivetrain.base.errors import ConfigError
from drivetrain.cluster.cluster_info import ClusterInfo
from drivetrain.cluster.read_cluster import read_cluster, read_environment, read_torchelastic

BY_HAND = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
TORCHRUN = BY_HAND | {
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "TORCHELASTIC_RUN_ID": "job",
    "TORCHELASTIC_RESTART_COUNT": "5",
}


def test_an_empty_environment_is_one_process_alone() -> None:
    """A plain `python train.py` would look for a launcher."""
    assert read_cluster({}) == ClusterInfo(rank=0, world_size=1, local_rank=0, local_world_size=1)
    assert not read_cluster({}).is_launched


def test_an_address_alone_makes_no_rank() -> None:
    """Machines where MASTER_ADDR is exported for everyone could run nothing."""
    assert not read_cluster({"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}).is_launched


def test_torchrun_is_read_with_all_its_numbers() -> None:
    """A rank would take another one's device or data."""
    assert read_cluster(TORCHRUN) == ClusterInfo(
        rank=3,
        world_size=4,
        local_rank=1,
        local_world_size=2,
        node_rank=1,
        num_nodes=2,
        launched_by="torchelastic",
        run_id="job",
        restart_count=5,
        main_address="10.0.0.1",
        main_port=29500,
    )


def test_a_rank_of_our_own_launcher_says_so() -> None:
    """Messages would blame torchrun for what drivetrain started."""
    assert read_cluster(TORCHRUN | {"DRIVETRAIN_LAUNCHER_PID": "17"}).launched_by == "drivetrain"


def test_variables_set_by_hand_are_enough_on_one_machine() -> None:
    """Schedulers that set no more than torch asks for could not be used."""
    info = read_cluster(BY_HAND | {"RANK": "1"})
    assert (info.launched_by, info.rank, info.local_world_size, info.num_nodes) == ("environment", 1, 4, 1)


def test_machines_of_different_sizes_are_read() -> None:
    """Ranks 0 to 2 on one machine and rank 3 on another would be refused or miscounted."""
    info = read_cluster(TORCHRUN | {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"})
    assert (info.rank, info.local_rank, info.node_rank, info.num_nodes) == (3, 0, 1, 2)


def test_readers_leave_what_is_not_theirs() -> None:
    """The first reader would claim every environment."""
    assert read_torchelastic(BY_HAND) is None
    assert read_environment({"LOCAL_WORLD_SIZE": "4"}) is None


@pytest.mark.parametrize("name", sorted(BY_HAND))
def test_a_half_set_environment_names_what_is_missing(name: str) -> None:
    """A rank would run alone, or hang in a rendezvous."""
    half = {key: value for key, value in BY_HAND.items() if key != name} | {"LOCAL_WORLD_SIZE": "2"}
    with pytest.raises(ConfigError, match=f"but {name} is not") as caught:
        read_cluster(half)
    assert caught.value.code == "cluster-environment"


def test_all_missing_variables_are_named_at_once() -> None:
    """They would have to be found one by one."""
    with pytest.raises(ConfigError, match="WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT are not"):
        read_cluster({"RANK": "0"})


def test_several_machines_need_the_ranks_of_each() -> None:
    """The number of ranks on a machine would be guessed."""
    with pytest.raises(ConfigError, match="LOCAL_WORLD_SIZE is not"):
        read_cluster(BY_HAND)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"RANK": "4"}, "RANK=4 is not below WORLD_SIZE=4"),
        ({"LOCAL_RANK": "2"}, "LOCAL_RANK=2 is not below LOCAL_WORLD_SIZE=2"),
        ({"LOCAL_WORLD_SIZE": "5"}, "LOCAL_WORLD_SIZE=5 is not below"),
        ({"WORLD_SIZE": "many"}, "WORLD_SIZE='many' is not a whole number"),
        ({"RANK": "-1"}, "RANK='-1' is not a whole number"),
        ({"MASTER_PORT": "http"}, "MASTER_PORT='http'"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(changed: dict[str, str], text: str) -> None:
    """A wrong number would show as a hang of the rendezvous."""
    with pytest.raises(ConfigError, match=text) as caught:
        read_cluster(TORCHRUN | changed)
    assert caught.value.code == "cluster-environment"
