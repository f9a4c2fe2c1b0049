from __future__ import annotations

import os
from pathlib import Path

from drivetrain.loggers.run_directory import RunDirectory


def test_runs_get_the_next_free_number(tmp_path: Path) -> None:
    """A run that writes into the directory of another."""
    numbers = []
    for _ in range(3):
        directory = RunDirectory(tmp_path, "exp", None)
        directory.make()
        numbers.append(directory.version)
    assert numbers == [0, 1, 2]


def test_numbers_are_compared_as_numbers(tmp_path: Path) -> None:
    """After version_10, version_9 looks newer to text, and 10 is chosen twice."""
    for number in (2, 9, 10):
        (tmp_path / "exp" / f"version_{number}").mkdir(parents=True)
    directory = RunDirectory(tmp_path, "exp", None)
    directory.make()
    assert directory.version == 11


def test_nothing_is_made_before_the_run(tmp_path: Path) -> None:
    """Ranks other than 0 that touch the disk by looking at a property."""
    directory = RunDirectory(tmp_path, "exp", None)
    assert directory.path is None
    assert os.listdir(tmp_path) == []


def test_a_version_that_was_given_is_used_as_it_is(tmp_path: Path) -> None:
    """A number of its own instead of the user's."""
    for version, name in ((7, "version_7"), ("blue", "blue")):
        directory = RunDirectory(tmp_path, "exp", version)
        directory.make()
        assert directory.path == os.path.join(str(tmp_path), "exp", name)
        assert os.path.isdir(directory.path)


def test_a_resumed_run_goes_on_in_its_directory_and_leaves_no_empty_one(tmp_path: Path) -> None:
    """One curve in two directories after each resume."""
    first = RunDirectory(tmp_path, "exp", None)
    first.make()
    second = RunDirectory(tmp_path, "exp", None)
    second.make()
    assert second.adopt(first.state_dict(), is_writing=True)
    assert second.path == first.path
    assert os.listdir(tmp_path / "exp") == ["version_0"]


def test_a_version_that_was_given_is_not_changed_by_a_resume(tmp_path: Path) -> None:
    """The user's own choice lost to what a checkpoint says."""
    first = RunDirectory(tmp_path, "exp", None)
    first.make()
    second = RunDirectory(tmp_path, "exp", "mine")
    assert not second.adopt(first.state_dict(), is_writing=True)
    assert second.version == "mine"


def test_a_run_below_another_root_is_not_adopted(tmp_path: Path) -> None:
    """A run that writes into somebody else's version_0 because the number is the same."""
    first = RunDirectory(tmp_path / "a", "exp", None)
    first.make()
    second = RunDirectory(tmp_path / "b", "exp", None)
    second.make()
    assert not second.adopt(first.state_dict(), is_writing=True)
    assert second.path == os.path.join(str(tmp_path), "b", "exp", "version_0")
