"""The example on digits makes the same steps on any number of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.ranks.launched_programs import SRC, run

EXAMPLE = SRC.parent / "examples" / "digits.py"

pytestmark = pytest.mark.slow


def train(directory: Path, name: str, *arguments: str, launcher: tuple[str, ...] = ()) -> dict[str, Any]:
    """Run the example for two epochs in float64; its final weights."""
    weights = directory / f"{name}.pt"
    options = ("--epochs", "2", "--float64", "--out", name, "--save-weights", str(weights))
    code, out, err = run(*launcher, EXAMPLE, *options, *arguments, cwd=directory)
    assert code == 0, err
    assert out.count("test accuracy") == 1, out  # rank 0 alone prints
    saved: dict[str, Any] = torch.load(weights, weights_only=True)
    return saved


def test_two_ranks_and_torchrun_reach_the_weights_of_one_process(tmp_path: Path) -> None:
    """The demo would show other results with each number of ranks: a lost sync, another order, another scale."""
    one = train(tmp_path, "one", "--devices", "1", "--accumulate", "8")
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    two = {
        "script": train(tmp_path, "script", "--devices", "2", "--accumulate", "4"),
        "torchrun": train(tmp_path, "torchrun", "--devices", "2", "--accumulate", "4", launcher=torchrun),
    }
    for how, weights in two.items():
        assert weights.keys() == one.keys()
        for name, value in one.items():
            assert value.dtype == torch.float64
            difference = (value - weights[name]).abs().max().item()
            assert difference < 1e-10, f"{how}: {name} differs by {difference}"


def test_another_cut_is_not_the_same_by_chance(tmp_path: Path) -> None:
    """The test above would pass if training changed nothing."""
    one = train(tmp_path, "one", "--accumulate", "8", "--epochs", "1")
    other = train(tmp_path, "other", "--accumulate", "4", "--epochs", "1")
    assert max((one[name] - other[name]).abs().max().item() for name in one) > 1e-3
