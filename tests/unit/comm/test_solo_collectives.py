"""Collectives of one rank: nothing is sent, shapes and types are those of many ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from drivetrain import ConfigError
from drivetrain.comm.collectives import SoloCollectives

TREE: dict[str, Any] = {"a": torch.arange(3.0), "b": [1, 2.5, True]}


def test_one_rank_is_rank_zero() -> None:
    """Nobody would write logs and checkpoints."""
    solo = SoloCollectives()
    assert (solo.rank, solo.world_size, solo.is_global_zero) == (0, 1, True)


@pytest.mark.parametrize("op", ["mean", "sum", "max", "min"])
def test_a_reduction_of_one_rank_is_the_value_itself(op: Any) -> None:
    """Metrics on one rank would differ from those of many."""
    reduced = SoloCollectives().all_reduce(TREE, op)
    assert reduced["a"].tolist() == [0.0, 1.0, 2.0]
    assert [float(one) for one in reduced["b"]] == [1.0, 2.5, 1.0]


def test_a_reduction_does_not_share_memory_with_its_input() -> None:
    """Changing the result in place would change the input on one rank, and not on two."""
    own = torch.ones(2, requires_grad=True)
    reduced = SoloCollectives().all_reduce(own)
    reduced.zero_()
    assert own.tolist() == [1.0, 1.0] and not reduced.requires_grad


def test_a_mean_of_whole_numbers_is_no_whole_number_division() -> None:
    """A count averaged over ranks would be rounded down; and one rank would give another dtype than two."""
    solo = SoloCollectives()
    assert solo.all_reduce(torch.tensor([3, 4]), "mean").dtype == torch.float64
    assert solo.all_reduce(torch.tensor([3, 4]), "sum").dtype == torch.int64


def test_an_unknown_reduction_is_refused() -> None:
    """A typing error would show only on several ranks."""
    with pytest.raises(ConfigError, match="op='median'") as caught:
        SoloCollectives().all_reduce(torch.ones(1), "median")  # type: ignore[arg-type]
    assert caught.value.code == "reduce-op"


def test_gathering_adds_a_dim_also_on_one_rank() -> None:
    """Code that indexes by rank would break on one rank."""
    gathered = SoloCollectives().all_gather({"a": torch.ones(2, 3), "n": 4, "x": 0.5})
    assert gathered["a"].shape == (1, 2, 3)
    assert gathered["n"].shape == (1,) and gathered["x"].dtype == torch.float64


def test_objects_come_back() -> None:
    """Decisions would be lost."""
    solo = SoloCollectives()
    marker = object()
    solo.barrier()
    assert solo.broadcast(marker) is marker
    assert solo.gather_objects(marker) == [marker]
    assert solo.agree((1.0, 2.0), "max") == [1.0, 2.0]
