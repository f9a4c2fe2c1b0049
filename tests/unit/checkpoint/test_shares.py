"""What is compared when a checkpoint is loaded, by how many, and what is compared besides when somebody asks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drivetrain import CheckpointError
from drivetrain.base.files import hash_file
from drivetrain.checkpoint.commit import commit, temporary_directory
from drivetrain.checkpoint.manifest import MANIFEST_NAME, FileRecord, Manifest, read_manifest, write_manifest
from drivetrain.checkpoint.verify import problems, require_valid
from tests.unit.checkpoint.saving import FILES, save


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def make(root: Path, sizes: list[int]) -> Path:
    temporary = temporary_directory(root / "checkpoint")
    for index, size in enumerate(sizes):
        (temporary / f"{index}.bin").write_bytes(bytes(size))
    records = [FileRecord(path.name, path.stat().st_size, hash_file(path)) for path in sorted(temporary.iterdir())]
    write_manifest(temporary, Manifest(step=1, world_size=1, files=records))
    commit(temporary, root / "checkpoint")
    return root / "checkpoint"


@pytest.mark.parametrize("num_shares", [1, 2, 3, 7])
def test_each_file_is_in_exactly_one_share(tmp_path: Path, num_shares: int) -> None:
    """A file that no rank reads, or that all read."""
    checkpoint = make(tmp_path, [5, 1, 1, 9, 0])
    for path in sorted(checkpoint.glob("*.bin")):
        good = path.read_bytes()
        if good:
            flip(path)
            found = [problems(checkpoint, share=(index, num_shares)) for index in range(num_shares)]
            assert sorted(map(len, found)) == [*[0] * (num_shares - 1), 1]
            path.write_bytes(good)


def test_what_every_share_sees_is_said_by_each(tmp_path: Path) -> None:
    """A rank that goes on with a checkpoint in which a file of another rank is missing."""
    checkpoint = make(tmp_path, [5, 5])
    (checkpoint / "1.bin").unlink()
    assert [problems(checkpoint, share=(index, 2)) for index in range(2)] == [["1.bin is missing"]] * 2


def test_the_hash_is_compared_when_somebody_asks(tmp_path: Path) -> None:
    """Bytes that were changed on purpose so that the checksum fits would pass every check."""
    checkpoint = save(tmp_path, 1, 1.0)
    manifest = read_manifest(checkpoint)
    records = [FileRecord(one.name, one.size_bytes, "0" * 64, one.checksum) for one in manifest.files]
    (checkpoint / MANIFEST_NAME).unlink()
    write_manifest(checkpoint, Manifest(step=1, world_size=2, files=records))
    assert problems(checkpoint) == []
    assert len(problems(checkpoint, is_thorough=True)) == len(FILES)


def test_a_manifest_without_checksums_is_verified_by_its_hashes(tmp_path: Path) -> None:
    """Checkpoints that were written before there were checksums could not be loaded, or would not be verified."""
    checkpoint = make(tmp_path, [5, 6])
    assert {record["checksum"] for record in json.loads((checkpoint / MANIFEST_NAME).read_text())["files"]} == {""}
    assert require_valid(checkpoint).step == 1
    flip(checkpoint / "1.bin")
    with pytest.raises(CheckpointError, match="1.bin has other content"):
        require_valid(checkpoint)
