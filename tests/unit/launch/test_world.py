"""Requests for ranks, and what is there."""

from __future__ import annotations

import pytest

from drivetrain.base.errors import ConfigError, LaunchError
from drivetrain.cluster.cluster_info import ClusterInfo
from drivetrain.launch.world import check_may_launch, check_world

ALONE = ClusterInfo(0, 1, 0, 1)
RANK = ClusterInfo(1, 2, 1, 2, launched_by="torchelastic")


def test_another_number_of_ranks_than_started_is_an_error_with_both() -> None:
    """A job for three GPUs would run on two without a word."""
    with pytest.raises(LaunchError, match="3 ranks were asked for, but torchelastic started 2") as caught:
        check_world(RANK, 3)
    assert caught.value.code == "world-size"


def test_the_right_number_of_ranks_passes() -> None:
    """Every run under torchrun would be refused."""
    check_world(RANK, 2)
    check_world(ALONE, 4)


def test_one_rank_of_a_launcher_counts_as_started() -> None:
    """Four ranks asked for under `torchrun --nproc-per-node 1` would train on one."""
    with pytest.raises(LaunchError, match="4 ranks were asked for"):
        check_world(ClusterInfo(0, 1, 0, 1, launched_by="torchelastic"), 4)


def test_a_rank_does_not_launch() -> None:
    """Ranks would start ranks without end."""
    with pytest.raises(LaunchError, match="one of 2 ranks that torchelastic started") as caught:
        check_may_launch(RANK, 2)
    assert caught.value.code == "launched-twice"


def test_no_rank_is_not_a_launch() -> None:
    """Zero ranks would end in success with nothing done."""
    with pytest.raises(ConfigError, match="num_ranks=0") as caught:
        check_may_launch(ALONE, 0)
    assert caught.value.code == "num-ranks"
