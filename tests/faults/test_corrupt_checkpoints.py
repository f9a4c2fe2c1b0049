"""Checkpoints that were damaged after they were written: always found, and the newest whole one is used instead."""

from __future__ import annotations

import random
import warnings
from pathlib import Path

import pytest

from drivetrain import CheckpointError
from tests.faults.damaged import DAMAGES, Damage, check_damage, flip_a_bit, opened, save

NUM_TRIALS = 64


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_always_found_and_the_newest_whole_one_is_used(damage: Damage, tmp_path: Path) -> None:
    """A weight that is not what was trained gets into a run; or the run does not start though a good one is there."""
    for step in (1, 2, 3):
        save(tmp_path / "good", step)
    draw = random.Random(damage.__name__)
    with opened() as parts:
        for _ in range(NUM_TRIALS):
            check_damage(tmp_path / "good", tmp_path / "trial", damage, draw, parts)


def test_without_damage_the_newest_one_is_used_without_a_word(tmp_path: Path) -> None:
    """The test above would pass if the newest one were never used."""
    for step in (1, 2, 3):
        save(tmp_path, step)
    with opened() as (fabric, model, module), warnings.catch_warnings():
        warnings.simplefilter("error")
        fabric.load(tmp_path, {"model": model})
        assert (module.weight == 3).all() and fabric.latest(tmp_path) == tmp_path / "step=3"


def test_where_no_checkpoint_is_whole_none_is_loaded(tmp_path: Path) -> None:
    """A folder in which all are damaged would give the least damaged one."""
    draw = random.Random(0)
    for step in (1, 2):
        save(tmp_path, step)
        flip_a_bit(tmp_path / f"step={step}", draw)
    with opened() as (fabric, model, _):
        with pytest.warns(UserWarning, match="No checkpoint is used; passed over:"):
            assert fabric.latest(tmp_path) is None
        with pytest.warns(UserWarning), pytest.raises(CheckpointError) as caught:
            fabric.load(tmp_path, {"model": model})
        assert caught.value.code == "checkpoint-corrupt"
        assert fabric.latest(tmp_path / "nothing") is None
