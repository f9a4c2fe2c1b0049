"""Who may still give a checkpoint its name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from drivetrain.base.errors import CheckpointError
from drivetrain.base.fence import FENCE
from drivetrain.checkpoint.commit import commit, point_latest, read_latest, temporary_directory
from drivetrain.checkpoint.manifest import Manifest, write_manifest


@pytest.fixture(autouse=True)
def fence_is_open_again() -> Iterator[None]:
    """Other tests write checkpoints in this process."""
    yield
    FENCE.follow(None)


def test_a_process_that_comes_back_too_late_commits_nothing(tmp_path: Path) -> None:
    """A rank that was stopped would change what the run that went on without it reads."""
    whole, late = tmp_path / "whole", tmp_path / "late"
    for final in (whole, late):
        temporary = temporary_directory(final)
        write_manifest(temporary, Manifest(1, 1, []))
        if final is whole:
            commit(temporary, final)
            point_latest(tmp_path, "whole")
    FENCE.follow(lambda: False)
    with pytest.raises(CheckpointError, match=r"\[checkpoint-fenced\]"):
        commit(temporary, late)
    with pytest.raises(CheckpointError, match=r"\[checkpoint-fenced\]"):
        point_latest(tmp_path, "whole")
    assert not late.exists() and read_latest(tmp_path) == whole
