from __future__ import annotations

import errno
import hashlib
import os
import stat
from pathlib import Path
from typing import BinaryIO

import pytest

from drivetrain.base.files import (
    free_space_bytes,
    fsync_directory,
    hash_file,
    make_directory,
    write_bytes_atomically,
    write_text_atomically,
)
from tests.unit.base.disk_calls import syncs_and_renames


def fail_halfway(file: BinaryIO, data: bytes | memoryview) -> None:
    file.write(data[: len(data) // 2])
    raise OSError(errno.ENOSPC, "No space left on device")


def test_content_is_on_the_disk_before_its_name_and_the_name_before_the_end(tmp_path: Path) -> None:
    """A power cut that leaves an empty file under the final name, or takes back a write that was reported as done."""
    calls = syncs_and_renames(lambda: write_text_atomically(tmp_path / "a", "x"))
    assert calls == ["fsync", "replace", "fsync"]


def test_a_new_directory_is_on_the_disk_before_the_end(tmp_path: Path) -> None:
    """A power cut that takes back a directory and with it every checkpoint in it."""
    assert syncs_and_renames(lambda: make_directory(tmp_path / "a" / "b")) == ["fsync", "fsync"]


def test_a_file_holds_what_was_written(tmp_path: Path) -> None:
    """Text or bytes that come back changed."""
    write_text_atomically(tmp_path / "a", "Größe\n")
    write_bytes_atomically(tmp_path / "b", b"\r\n\0")
    assert (tmp_path / "a").read_bytes() == "Größe\n".encode()
    assert (tmp_path / "b").read_bytes() == b"\r\n\0"


def test_a_failed_write_leaves_the_old_content_and_no_other_file(tmp_path: Path) -> None:
    """A full disk that costs the file that was there."""
    write_text_atomically(tmp_path / "a", "old")
    with pytest.raises(OSError):
        write_text_atomically(tmp_path / "a", "new content", write=fail_halfway)
    assert (tmp_path / "a").read_text() == "old"
    assert os.listdir(tmp_path) == ["a"]


def test_the_bytes_go_through_the_same_directory(tmp_path: Path) -> None:
    """A temporary file elsewhere: on another disk the rename would be a copy, and a full /tmp would fail the write."""
    seen: list[str] = []

    def look(file: BinaryIO, data: bytes | memoryview) -> None:
        seen.extend(os.listdir(tmp_path))
        assert (tmp_path / "a").read_text() == "old"
        file.write(data)

    (tmp_path / "a").write_text("old")
    write_text_atomically(tmp_path / "a", "new", write=look)
    assert len(seen) == 2
    assert (tmp_path / "a").read_text() == "new"


def test_others_may_read_the_file_as_the_umask_says(tmp_path: Path) -> None:
    """Files that only their writer can read, as those of tempfile are."""
    before = os.umask(0o022)
    try:
        write_text_atomically(tmp_path / "a", "x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o644


def test_a_write_into_a_directory_that_is_not_there_fails(tmp_path: Path) -> None:
    """A save that returns although nothing was saved."""
    with pytest.raises(FileNotFoundError):
        write_text_atomically(tmp_path / "no" / "a", "x")
    with pytest.raises(FileNotFoundError):
        fsync_directory(tmp_path / "no")


def test_directories_are_made_with_those_above_them(tmp_path: Path) -> None:
    """A first save into a new directory that fails."""
    make_directory(tmp_path / "a" / "b")
    make_directory(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):
        make_directory(tmp_path / "file" / "b")


@pytest.mark.parametrize("size_bytes", [0, 1, 1_000_003])
def test_a_hash_is_the_one_of_the_whole_content(tmp_path: Path, size_bytes: int) -> None:
    """A hash that misses the last piece of a file."""
    data = os.urandom(size_bytes)
    (tmp_path / "a").write_bytes(data)
    assert hash_file(tmp_path / "a") == hashlib.sha256(data).hexdigest()


def test_free_space_is_known_for_a_path_that_is_still_to_be_made(tmp_path: Path) -> None:
    """A check before the first save that fails because the directory is not there yet."""
    assert free_space_bytes(tmp_path / "a" / "b") > 0
