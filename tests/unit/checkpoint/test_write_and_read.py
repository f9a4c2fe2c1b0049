from __future__ import annotations

import errno
import os
import pickle
import subprocess
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import torch

from drivetrain import CheckpointError
from drivetrain.base.files import hash_file
from drivetrain.checkpoint.read import read_tensors
from drivetrain.checkpoint.write import record_file, size_bytes_of, write_tensors
from drivetrain.checkpoint.write_errors import require_space
from tests.unit.base.disk_calls import syncs_and_renames
from tests.unit.checkpoint.saving import state_of


class FailAt:
    """A `Write` that fails at a byte."""

    def __init__(self, offset: int, error: BaseException) -> None:
        self.offset = offset
        self.error = error

    def __call__(self, file: BinaryIO, data: bytes | memoryview) -> None:
        self.offset -= len(data)
        if self.offset < 0:
            raise self.error
        file.write(data)


@pytest.mark.parametrize("mmap", [True, False])
def test_a_state_comes_back_bit_for_bit(tmp_path: Path, mmap: bool) -> None:
    """A tensor or a plain value that changes on its way through the file."""
    state: dict[str, Any] = {
        "a": torch.randn(100),
        "b": [torch.arange(3), {"c": 0.1, 5: None}],
        "empty": torch.empty(0),
    }
    write_tensors(tmp_path / "a.pt", state)
    again = read_tensors(tmp_path / "a.pt", mmap=mmap)
    assert torch.equal(again["a"], state["a"]) and torch.equal(again["b"][0], torch.arange(3))
    assert again["b"][1] == {"c": 0.1, 5: None} and again["empty"].numel() == 0


def test_the_record_is_that_of_the_file(tmp_path: Path) -> None:
    """A manifest that does not fit its files."""
    (tmp_path / "rank").mkdir()
    record = write_tensors(tmp_path / "rank" / "a.pt", state_of(1.0), root=tmp_path, read_back=True)
    assert record.name == "rank/a.pt"
    assert record.size_bytes == (tmp_path / "rank" / "a.pt").stat().st_size
    assert record.sha256 == hash_file(tmp_path / "rank" / "a.pt")
    assert record_file(tmp_path, "rank/a.pt") == record


def test_every_file_is_on_the_disk_when_its_record_is_there(tmp_path: Path) -> None:
    """A power cut after a save that leaves a checkpoint of empty files."""
    assert syncs_and_renames(lambda: write_tensors(tmp_path / "a.pt", state_of(1.0))) == ["fsync"]
    assert syncs_and_renames(lambda: record_file(tmp_path, "a.pt")) == ["fsync"]


def test_changes_to_a_mapped_tensor_stay_in_memory(tmp_path: Path) -> None:
    """A resumed run that writes into the checkpoint it came from."""
    record = write_tensors(tmp_path / "a.pt", state_of(1.0))
    read_tensors(tmp_path / "a.pt")["model"]["weight"].add_(1)
    assert hash_file(tmp_path / "a.pt") == record.sha256


def test_a_mapped_tensor_outlives_its_file(tmp_path: Path) -> None:
    """A retention that deletes the checkpoint a run was resumed from, and with it the run."""
    write_tensors(tmp_path / "a.pt", state_of(3.0))
    weight = read_tensors(tmp_path / "a.pt")["model"]["weight"]
    (tmp_path / "a.pt").unlink()
    assert weight.sum() == 3 * weight.numel()


@pytest.mark.parametrize("offset", [0, 100, 1500, 3000, 10**9])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EIO])
def test_a_failed_write_says_path_and_reason_and_leaves_nothing(tmp_path: Path, offset: int, number: int) -> None:
    """An error about a position in a zip file instead of the full disk; a partial file that takes up the space."""
    path = tmp_path / "a.pt"
    write = FailAt(offset, OSError(number, os.strerror(number)))
    if offset == 10**9:
        write_tensors(path, state_of(1.0), write=write)
        return
    with pytest.raises(CheckpointError) as caught:
        write_tensors(path, state_of(1.0), write=write)
    assert caught.value.code == "checkpoint-write"
    assert str(path) in str(caught.value) and os.strerror(number) in str(caught.value)
    assert os.listdir(tmp_path) == []


def test_any_other_failure_in_a_write_is_passed_on(tmp_path: Path) -> None:
    """Ctrl+C that comes out as an error of the zip writer."""
    for error in (KeyboardInterrupt(), ValueError("mine")):
        with pytest.raises(type(error)) as caught:
            write_tensors(tmp_path / "a.pt", state_of(1.0), write=FailAt(1000, error))
        assert caught.value is error
        assert os.listdir(tmp_path) == []


def test_bytes_that_the_storage_drops_are_noticed(tmp_path: Path) -> None:
    """Storage that reports success for what it did not keep."""

    def drop(file: BinaryIO, data: bytes | memoryview) -> None:
        file.write(data[:-1] if len(data) > 500 else data)

    with pytest.raises(CheckpointError, match="without an error") as caught:
        write_tensors(tmp_path / "a.pt", state_of(1.0), write=drop)
    assert caught.value.code == "checkpoint-write"


def test_bytes_that_the_storage_changes_are_noticed_when_asked(tmp_path: Path) -> None:
    """A hash that is taken of the damaged file, so that the damage verifies."""

    def change(file: BinaryIO, data: bytes | memoryview) -> None:
        file.write(bytes(len(data)) if len(data) > 500 else data)

    record = write_tensors(tmp_path / "a.pt", state_of(1.0), write=change)
    assert record.sha256 != hash_file(tmp_path / "a.pt")
    with pytest.raises(CheckpointError, match="read back"):
        write_tensors(tmp_path / "b.pt", state_of(1.0), write=change, read_back=True)


def test_a_file_is_never_written_over(tmp_path: Path) -> None:
    """Two ranks, or two saves, that share a file."""
    write_tensors(tmp_path / "a.pt", state_of(1.0))
    with pytest.raises(CheckpointError, match="File exists"):
        write_tensors(tmp_path / "a.pt", state_of(2.0))
    assert read_tensors(tmp_path / "a.pt")["value"] == 1.0


def test_a_state_that_is_not_plain_is_refused_before_the_file_is_made(tmp_path: Path) -> None:
    """A checkpoint that cannot be loaded, or half of one."""
    with pytest.raises(CheckpointError, match=r"state\['path'\]") as caught:
        write_tensors(tmp_path / "a.pt", {"path": Path("x")})
    assert caught.value.code == "checkpoint-plain-data"
    assert os.listdir(tmp_path) == []


def test_a_full_disk_is_reported_and_its_space_comes_back(small_disk: Path) -> None:
    """A partial file that stays on the full disk, so that the next save fails as well."""
    big = {"weight": torch.ones(32 * 1024)}
    assert size_bytes_of(big) == 128 * 1024
    with pytest.raises(CheckpointError, match="bytes free; the checkpoint needs 131072"):
        require_space(small_disk / "not made yet", size_bytes=size_bytes_of(big))
    with pytest.raises(CheckpointError, match="No space left on device") as caught:
        write_tensors(small_disk / "a.pt", big)
    assert caught.value.code == "checkpoint-write"
    assert "Free some space" in str(caught.value)
    require_space(small_disk, size_bytes=32 * 1024)
    write_tensors(small_disk / "a.pt", {"weight": torch.ones(1024)})


def test_a_read_only_disk_is_reported(small_disk: Path) -> None:
    """A permission failure that passes for a save."""
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(CheckpointError, match="Read-only file system") as caught:
        write_tensors(small_disk / "a.pt", state_of(1.0))
    assert caught.value.code == "checkpoint-write"


def test_shared_storage_is_counted_once() -> None:
    """Tied weights that make a save ask for space it does not need."""
    weight = torch.ones(10)
    assert size_bytes_of({"a": weight, "b": weight, "c": [weight[:5]], "d": torch.ones(2, dtype=torch.int64)}) == 56
    assert size_bytes_of(torch.ones(3).to_sparse()) > 0


def test_a_missing_file_is_told_from_a_damaged_one(tmp_path: Path) -> None:
    """A mistyped path that is reported as damage."""
    for path in (tmp_path / "a.pt", tmp_path):
        with pytest.raises(CheckpointError) as caught:
            read_tensors(path)
        assert caught.value.code == "checkpoint-missing"


@pytest.mark.parametrize("size_bytes", [0, 1, 100, 2000, -1])
def test_a_cut_file_is_damaged(tmp_path: Path, size_bytes: int) -> None:
    """An error from inside torch that does not say which checkpoint is damaged."""
    write_tensors(tmp_path / "a.pt", state_of(1.0))
    data = (tmp_path / "a.pt").read_bytes()
    (tmp_path / "a.pt").write_bytes(data[:size_bytes])
    with pytest.raises(CheckpointError, match=r"a\.pt") as caught:
        read_tensors(tmp_path / "a.pt")
    assert caught.value.code == "checkpoint-corrupt"


class Crafted:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("mmap", [True, False])
def test_a_crafted_file_raises_and_runs_nothing(tmp_path: Path, zipped: bool, mmap: bool) -> None:
    """A checkpoint from somewhere else that runs code here."""
    path = tmp_path / "a.pt"
    if zipped:
        torch.save({"weight": Crafted(tmp_path / "was run")}, path)
    else:
        path.write_bytes(pickle.dumps(Crafted(tmp_path / "was run")))
    with pytest.raises(CheckpointError) as caught:
        read_tensors(path, mmap=mmap)
    assert caught.value.code == "checkpoint-corrupt"
    assert not (tmp_path / "was run").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="the device of the test is there")
def test_a_device_that_is_not_there_is_not_called_damage(tmp_path: Path) -> None:
    """A good checkpoint that is skipped, or deleted, because of a wrong device."""
    write_tensors(tmp_path / "a.pt", state_of(1.0))
    with pytest.raises(Exception) as caught:
        read_tensors(tmp_path / "a.pt", map_location="cuda")
    assert not isinstance(caught.value, CheckpointError)
