from __future__ import annotations

import os
from pathlib import Path

import pytest

from drivetrain.callbacks.last_pointer import point_last, resolve_last


def test_the_pointer_is_a_relative_link(tmp_path: Path) -> None:
    """A run directory that was moved, and whose last.ckpt leads to where it was."""
    (tmp_path / "a" / "one").mkdir(parents=True)
    point_last(tmp_path / "a" / "last.ckpt", tmp_path / "a" / "one")
    os.rename(tmp_path / "a", tmp_path / "b")
    assert resolve_last(tmp_path / "b" / "last.ckpt") == tmp_path / "b" / "one"


def test_the_pointer_moves_without_a_gap_and_leaves_nothing(tmp_path: Path) -> None:
    """A moment without last.ckpt, or hidden files that pile up."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        point_last(tmp_path / "last.ckpt", tmp_path / name)
        assert resolve_last(tmp_path / "last.ckpt") == tmp_path / name
    assert sorted(os.listdir(tmp_path)) == ["last.ckpt", "one", "two"]


def test_a_text_file_is_a_pointer_too(tmp_path: Path) -> None:
    """A file system without links, where last.ckpt cannot be followed."""
    (tmp_path / "one").mkdir()
    (tmp_path / "last.ckpt").write_text("one\n")
    assert resolve_last(tmp_path / "last.ckpt") == tmp_path / "one"


def test_a_pointer_that_leads_nowhere_is_none(tmp_path: Path) -> None:
    """A path that is not there, handed on as a checkpoint."""
    assert resolve_last(tmp_path / "last.ckpt") is None
    (tmp_path / "last.ckpt").write_text("gone\n")
    assert resolve_last(tmp_path / "last.ckpt") is None


def test_a_directory_in_the_way_stays(tmp_path: Path) -> None:
    """Somebody's own last.ckpt, replaced by a link."""
    (tmp_path / "one").mkdir()
    (tmp_path / "last.ckpt").mkdir()
    (tmp_path / "last.ckpt" / "file").touch()
    with pytest.raises(OSError, match=r"last\.ckpt"):
        point_last(tmp_path / "last.ckpt", tmp_path / "one")
    assert sorted(os.listdir(tmp_path)) == ["last.ckpt", "one"]
