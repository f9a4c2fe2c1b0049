from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from drivetrain import CheckpointError
from drivetrain.base.temporary_names import parse_temporary
from drivetrain.checkpoint.commit import LATEST_NAME, commit, discard, point_latest, read_latest, temporary_directory
from drivetrain.checkpoint.manifest import MANIFEST_NAME, Manifest, write_manifest
from drivetrain.checkpoint.verify import newest_valid, problems
from tests.unit.base.disk_calls import syncs_and_renames
from tests.unit.checkpoint.saving import hidden_in, save, value_in


def test_a_save_makes_a_whole_checkpoint_and_nothing_else(tmp_path: Path) -> None:
    """Hidden directories that pile up beside the checkpoints."""
    checkpoint = save(tmp_path / "new" / "root", 1, 1.0)
    assert problems(checkpoint) == []
    assert sorted(os.listdir(checkpoint.parent)) == [LATEST_NAME, "step=1"]


def test_a_checkpoint_is_replaced_as_a_whole(tmp_path: Path) -> None:
    """Files of two saves in one directory."""
    save(tmp_path, 1, 1.0)
    again = save(tmp_path, 1, 2.0)
    assert problems(again) == [] and value_in(again) == 2.0
    assert hidden_in(tmp_path) == []


def test_a_reader_of_the_old_checkpoint_is_not_disturbed(tmp_path: Path) -> None:
    """A replacement that writes into files that someone is reading."""
    checkpoint = save(tmp_path, 1, 1.0)
    with open(checkpoint / "rank-0.pt", "rb") as file:
        start = file.read(100)
        save(tmp_path, 1, 2.0)
        file.seek(0)
        assert file.read(100) == start


def test_a_damaged_checkpoint_can_be_replaced(tmp_path: Path) -> None:
    """A run that can never save this step again."""
    checkpoint = save(tmp_path, 1, 1.0)
    (checkpoint / MANIFEST_NAME).write_text("")
    assert problems(save(tmp_path, 1, 2.0)) == []


@pytest.mark.parametrize("kind", ["file", "directory", "link"])
def test_what_is_no_checkpoint_is_never_replaced(tmp_path: Path, kind: str) -> None:
    """A user's data that is deleted because a checkpoint was to have its name."""
    data = tmp_path / "data"
    (tmp_path / "there").mkdir()
    if kind == "file":
        data.write_text("mine")
    elif kind == "directory":
        data.mkdir()
        (data / "mine").write_text("")
    else:
        data.symlink_to(tmp_path / "there")
    with pytest.raises(CheckpointError, match=kind) as caught:
        save(tmp_path, 1, 1.0, name="data")
    assert caught.value.code == "checkpoint-occupied"
    assert data.exists() and hidden_in(tmp_path) == []


def test_an_empty_directory_may_become_a_checkpoint(tmp_path: Path) -> None:
    """A directory that was made beforehand and now stops the save."""
    (tmp_path / "a").mkdir()
    assert problems(save(tmp_path, 1, 1.0, name="a")) == []


def test_attempts_do_not_share_a_directory(tmp_path: Path) -> None:
    """A second attempt that finds the files of the first in its way."""
    one, two = temporary_directory(tmp_path / "a"), temporary_directory(tmp_path / "a")
    assert one != two and one.parent == two.parent == tmp_path
    assert one.name.startswith(".a.tmp-")


def test_the_directory_for_temporary_files_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A save that needs its own size in /tmp."""
    monkeypatch.setattr(tempfile, "tempdir", "/proc/does not exist")
    assert problems(save(tmp_path, 1, 1.0)) == []


def test_a_temporary_directory_that_was_taken_away_is_not_committed(tmp_path: Path) -> None:
    """A late writer that replaces a good checkpoint after its leftovers were cleaned up."""
    checkpoint = save(tmp_path, 1, 1.0)
    temporary = temporary_directory(checkpoint)
    write_manifest(temporary, Manifest(step=1, world_size=1, files=()))
    shutil.rmtree(temporary)
    with pytest.raises(CheckpointError) as caught:
        commit(temporary, checkpoint)
    assert caught.value.code == "checkpoint-write"
    assert problems(checkpoint) == [] and value_in(checkpoint) == 1.0
    assert hidden_in(tmp_path) == []


def test_content_is_on_the_disk_before_its_name_and_the_name_before_the_old_one_goes(tmp_path: Path) -> None:
    """A power cut after a save that leaves neither the old nor the new checkpoint."""
    final = save(tmp_path, 1, 1.0)
    temporary = temporary_directory(final)
    (temporary / "parts").mkdir()
    write_manifest(temporary, Manifest(step=1, world_size=1, files=()))
    calls = syncs_and_renames(lambda: commit(temporary, final))
    # both directories; old aside, new in its place; the names; only then the old one on its way out
    assert calls[:6] == ["fsync", "fsync", "rename", "rename", "fsync", "rename"]


def test_the_old_checkpoint_comes_back_if_the_new_one_cannot_take_its_name(tmp_path: Path, small_disk: Path) -> None:
    """A failed rename that leaves the name of a good checkpoint empty."""
    checkpoint = save(tmp_path / "root", 1, 1.0)
    temporary = temporary_directory(small_disk / "a")
    write_manifest(temporary, Manifest(step=1, world_size=1, files=()))
    with pytest.raises(CheckpointError, match="cross-device"):
        commit(temporary, checkpoint)
    assert problems(checkpoint) == [] and hidden_in(tmp_path / "root") == []


def test_a_directory_without_a_manifest_is_not_committed(tmp_path: Path) -> None:
    """A half-written checkpoint under a name that readers trust."""
    temporary = temporary_directory(tmp_path / "a")
    with pytest.raises(AssertionError):
        commit(temporary, tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_a_full_disk_leaves_the_old_checkpoint_and_no_leftovers(small_disk: Path) -> None:
    """A save that fails and takes the last good checkpoint with it, or leaves no room for the next one."""
    checkpoint = save(small_disk, 1, 1.0)
    ballast = small_disk / "ballast"
    try:
        ballast.write_bytes(bytes(1024 * 1024))
    except OSError:
        os.truncate(ballast, max(ballast.stat().st_size - 4096, 0))
    with pytest.raises(CheckpointError, match="No space left"):
        save(small_disk, 1, 2.0)
    assert newest_valid(small_disk) == (checkpoint, []) and value_in(checkpoint) == 1.0
    assert hidden_in(small_disk) == []
    ballast.unlink()
    assert value_in(save(small_disk, 1, 3.0)) == 3.0


def test_latest_names_the_last_save(tmp_path: Path) -> None:
    """A script that resumes from an old checkpoint because the newest has another name after a restart."""
    assert read_latest(tmp_path) is None
    for step in (9, 10, 3):
        assert save(tmp_path, step, 1.0) == read_latest(tmp_path)
    assert (tmp_path / LATEST_NAME).read_text() == "step=3\n"


@pytest.mark.parametrize("text", ["", "\n", "gone\n", "../x\n", "/etc\n", "a\0b", ".."])
def test_a_pointer_to_nothing_is_no_pointer(tmp_path: Path, text: str) -> None:
    """A pointer that leads out of the directory, or to a checkpoint that was deleted."""
    (tmp_path / "root").mkdir()
    (tmp_path / "x").mkdir()
    (tmp_path / "root" / LATEST_NAME).write_text(text)
    assert read_latest(tmp_path / "root") is None


def test_only_a_checkpoint_can_be_pointed_to(tmp_path: Path) -> None:
    """A pointer that moves before its checkpoint is there."""
    with pytest.raises(AssertionError):
        point_latest(tmp_path, "a")


def test_a_discarded_checkpoint_is_gone(tmp_path: Path) -> None:
    """A retention that frees no space, or fails at what another has deleted."""
    checkpoint = save(tmp_path, 1, 1.0)
    assert discard(checkpoint) and discard(checkpoint)
    temporary = temporary_directory(checkpoint)
    assert discard(temporary)
    assert os.listdir(tmp_path) == [LATEST_NAME]
    assert read_latest(tmp_path) is None


def test_what_cannot_be_deleted_is_told(tmp_path: Path) -> None:
    """A retention that frees nothing and says nothing."""
    assert not discard(Path("/proc/self/fd"))


def test_hidden_names_stay_short_when_discarded(tmp_path: Path) -> None:
    """A long name that can be written but not removed."""
    name = "a" * 200
    temporary = temporary_directory(tmp_path / name)
    parsed = parse_temporary(temporary.name)
    assert parsed is not None and parsed.final == name
    assert discard(temporary) and os.listdir(tmp_path) == []
    with pytest.raises(CheckpointError, match="too long"):
        temporary_directory(tmp_path / ("a" * 250))
