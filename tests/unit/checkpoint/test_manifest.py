from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from drivetrain import CheckpointError
from drivetrain.checkpoint.manifest import MANIFEST_NAME, FileRecord, Manifest, read_manifest, write_manifest
from drivetrain.checkpoint.write import record_file


def written(directory: Path, **extra: Any) -> Manifest:
    (directory / "parts").mkdir(parents=True)
    for name in ("b.bin", "parts/a.bin"):
        (directory / name).write_bytes(name.encode())
    files = tuple(record_file(directory, name) for name in ("b.bin", "parts/a.bin"))
    manifest = Manifest(step=7, world_size=2, files=files, extra=extra)
    write_manifest(directory, manifest)
    return manifest


def test_a_manifest_comes_back_as_it_was(tmp_path: Path) -> None:
    """A field that is lost or changed on its way through the file."""
    manifest = written(tmp_path / "a", metric=0.1, tiny=5e-324, name="Größe", none=None, keys=["b", "a"])
    assert read_manifest(tmp_path / "a") == manifest
    assert manifest.size_bytes == 16


def test_every_flipped_bit_of_a_manifest_is_found(tmp_path: Path) -> None:
    """A step number or a hash that changed on the disk and is believed."""
    written(tmp_path / "a", metric=0.1)
    path = tmp_path / "a" / MANIFEST_NAME
    good = path.read_bytes()
    for bit in random.Random(0).sample(range(8 * len(good)), 800):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        path.write_bytes(bad)
        with pytest.raises(CheckpointError) as caught:
            read_manifest(tmp_path / "a")
        assert caught.value.code == "checkpoint-corrupt", bit


@pytest.mark.parametrize("text", ["", "null", "[]", "{}", "1", '{"format_version": 1}', "[" * 100_000])
def test_a_file_that_is_no_manifest_is_found(tmp_path: Path, text: str) -> None:
    """An error of the JSON reader instead of one that says which checkpoint is damaged."""
    (tmp_path / MANIFEST_NAME).write_text(text)
    with pytest.raises(CheckpointError) as caught:
        read_manifest(tmp_path)
    assert caught.value.code == "checkpoint-corrupt"


def test_a_missing_manifest_is_told_from_a_missing_directory(tmp_path: Path) -> None:
    """A mistyped path that is reported as a damaged checkpoint."""
    for directory, text in ((tmp_path, "is not a checkpoint"), (tmp_path / "no", "There is no checkpoint at")):
        with pytest.raises(CheckpointError, match=text) as caught:
            read_manifest(directory)
        assert caught.value.code == "checkpoint-missing"


def test_a_newer_format_is_not_called_damaged(tmp_path: Path) -> None:
    """A checkpoint of a newer version that is skipped or deleted as if it were broken."""
    write_manifest(tmp_path, Manifest(step=1, world_size=1, files=(), format_version=2))
    with pytest.raises(CheckpointError, match="format version 2") as caught:
        read_manifest(tmp_path)
    assert caught.value.code == "checkpoint-format"


@pytest.mark.parametrize("name", ["/etc/passwd", "../a", "a/../../b", ""])
def test_a_manifest_cannot_name_files_outside(tmp_path: Path, name: str) -> None:
    """A crafted manifest that makes a run read, or a retention delete, files elsewhere."""
    good = written(tmp_path / "a")
    forged = Manifest(step=7, world_size=2, files=(*good.files, FileRecord(name, 0, "0" * 64)))
    with pytest.raises(CheckpointError):
        write_manifest(tmp_path / "a", forged)
    from drivetrain.checkpoint.manifest import _to_text

    (tmp_path / "a" / MANIFEST_NAME).write_text(_to_text(forged))
    with pytest.raises(CheckpointError, match="not a path inside"):
        read_manifest(tmp_path / "a")


@pytest.mark.parametrize("change", ["lost", "short", "extra", "link"])
def test_a_directory_that_lost_something_gets_no_manifest(tmp_path: Path, change: str) -> None:
    """Storage that drops bytes without an error, and a checkpoint that is committed all the same."""
    directory = tmp_path / "a"
    manifest = written(directory)
    (directory / MANIFEST_NAME).unlink()
    part = directory / "parts" / "a.bin"
    if change == "short":
        part.write_bytes(b"x")
    elif change == "extra":
        (directory / "parts" / "c.bin").write_bytes(b"x")
    else:
        part.unlink()
        if change == "link":
            part.symlink_to(directory / "b.bin")
    with pytest.raises(CheckpointError, match=r"parts/[ac]\.bin ") as caught:
        write_manifest(directory, manifest)
    assert caught.value.code == "checkpoint-write"
    assert not (directory / MANIFEST_NAME).exists()


@pytest.mark.parametrize("extra", [{"path": Path("a")}, {("a", "b"): 1}])
def test_extra_data_that_json_cannot_hold_is_refused(tmp_path: Path, extra: dict[Any, Any]) -> None:
    """A manifest that cannot be written after all the data was."""
    with pytest.raises(CheckpointError) as caught:
        write_manifest(tmp_path, Manifest(step=1, world_size=1, files=(), extra=extra))
    assert caught.value.code == "checkpoint-plain-data"


def test_a_manifest_can_be_read_by_other_programs(tmp_path: Path) -> None:
    """A format that only drivetrain can check."""
    written(tmp_path / "a")
    data = json.loads((tmp_path / "a" / MANIFEST_NAME).read_text())
    assert [record["name"] for record in data["files"]] == ["b.bin", "parts/a.bin"]
    assert (data["format_version"], data["step"], data["world_size"]) == (1, 7, 2)
