"""Who goes on with a run that was saved in a folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from drivetrain.base.errors import CheckpointError
from drivetrain.base.fence import FENCE
from drivetrain.checkpoint.claim import claim


@pytest.fixture(params=["directory", "store"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where checkpoints are."""
    return str(tmp_path) if request.param == "directory" else f"memory://{tmp_path.name}"


def test_who_goes_on_ends_the_right_of_those_before(folder: str) -> None:
    """A process that was cut off would go on to save beside the one that took its place."""
    first = claim(folder, "run", goes_on=False)
    assert first() is None
    second = claim(folder, "run", goes_on=True)
    assert f"process {os.getpid()} on" in str(first()) and second() is None
    third = claim(folder, "run", goes_on=True)
    assert second() is not None and third() is None


def test_numbers_grow(tmp_path: Path) -> None:
    """Nobody could say which of two came later."""
    for _ in range(3):
        claim(str(tmp_path), "run", goes_on=True)
    (file,) = tmp_path.iterdir()
    assert file.read_text().split()[0] == "3"


def test_other_runs_of_a_folder_are_left_alone(folder: str) -> None:
    """A sweep whose runs share a folder would end itself."""
    one, other = claim(folder, "one", goes_on=True), claim(folder, "other", goes_on=True)
    assert one() is None and other() is None


def test_a_run_from_the_start_leaves_no_file(tmp_path: Path) -> None:
    """Folders would fill with files that say nothing."""
    claim(str(tmp_path / "run"), "run", goes_on=False)
    assert not (tmp_path / "run").exists()


def test_nothing_below_the_folder_is_written_any_more(tmp_path: Path) -> None:
    """A process that is not wanted any more would give a checkpoint its name, or save in a folder of others no more."""
    with FENCE.watching(str(tmp_path / "mine"), lambda: "process 3"):
        with pytest.raises(CheckpointError, match=r"\[checkpoint-superseded\].*process 3 has gone on"):
            FENCE.require_open(tmp_path / "mine" / "step=1")
        FENCE.require_open(tmp_path / "mine-too" / "step=1")
    FENCE.require_open(tmp_path / "mine" / "step=1")
