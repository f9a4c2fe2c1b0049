from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from drivetrain import CheckpointError
from drivetrain.checkpoint.manifest import MANIFEST_NAME
from drivetrain.checkpoint.verify import list_checkpoints, newest_valid, problems, require_valid
from tests.unit.checkpoint.saving import FILES, save, value_in

FIRST, SECOND = FILES


def swap(one: Path, other: Path) -> None:
    kept = one.read_bytes()
    shutil.copyfile(other, one)
    other.write_bytes(kept)


def test_a_good_checkpoint_has_no_problems(tmp_path: Path) -> None:
    """A check that finds fault with every checkpoint."""
    checkpoint = save(tmp_path, 1, 1.0)
    assert problems(checkpoint) == []
    assert require_valid(checkpoint).step == 1
    assert newest_valid(tmp_path) == (checkpoint, [])


def test_every_flipped_bit_is_found(tmp_path: Path) -> None:
    """A weight that changed on the disk and is trained on."""
    checkpoint = save(tmp_path, 1, 1.0)
    draw = random.Random(0)
    for _ in range(64):
        path = checkpoint / draw.choice([*FILES, MANIFEST_NAME])
        good = path.read_bytes()
        bad = bytearray(good)
        bad[draw.randrange(len(bad))] ^= 1 << draw.randrange(8)
        path.write_bytes(bad)
        assert len(problems(checkpoint)) == 1
        assert path.name in problems(checkpoint)[0]
        path.write_bytes(good)
    assert problems(checkpoint) == []


def test_every_cut_file_is_found(tmp_path: Path) -> None:
    """A tail that never reached the disk."""
    checkpoint = save(tmp_path, 1, 1.0)
    draw = random.Random(0)
    for name in (*FILES, MANIFEST_NAME):
        path = checkpoint / name
        good = path.read_bytes()
        for size_bytes in (0, len(good) - 1, *(draw.randrange(len(good)) for _ in range(8))):
            path.write_bytes(good[:size_bytes])
            assert len(problems(checkpoint)) == 1
            assert name in problems(checkpoint)[0]
        path.write_bytes(good)


def test_files_that_are_missing_or_too_much_are_found(tmp_path: Path) -> None:
    """A shard that was deleted, or one of another save that got in."""
    checkpoint = save(tmp_path, 1, 1.0)
    (checkpoint / FIRST).rename(checkpoint / "rank-7.pt")
    assert problems(checkpoint) == [f"{FIRST} is missing", "rank-7.pt is not in the manifest"]
    (checkpoint / SECOND).unlink()
    (checkpoint / SECOND).symlink_to(checkpoint / "rank-7.pt")
    assert f"{SECOND} is not a regular file" in problems(checkpoint)


def test_swapped_files_are_found(tmp_path: Path) -> None:
    """Shards of different steps in one checkpoint: nothing about each file by itself is wrong."""
    one, two = save(tmp_path, 1, 1.0), save(tmp_path, 2, 2.0)
    for name in (FIRST, MANIFEST_NAME):
        swap(one / name, two / name)
        assert problems(one) and problems(two)
        swap(one / name, two / name)
    assert problems(one) == problems(two) == []


def test_a_damaged_checkpoint_is_refused_with_all_that_is_wrong(tmp_path: Path) -> None:
    """A run that trains on a damaged checkpoint because it was named explicitly."""
    checkpoint = save(tmp_path, 1, 1.0)
    (checkpoint / FIRST).unlink()
    (checkpoint / SECOND).write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"rank-0\.pt is missing; rank-1\.pt has 0 bytes instead of") as caught:
        require_valid(checkpoint)
    assert caught.value.code == "checkpoint-corrupt"
    with pytest.raises(CheckpointError) as caught:
        require_valid(tmp_path / "no")
    assert caught.value.code == "checkpoint-missing"


@pytest.mark.parametrize("name", ["step={}", "{}", "run-2-step-{}-x", "epoch=9-step={}"])
def test_order_is_that_of_numbers(tmp_path: Path, name: str) -> None:
    """Step 9 that is taken for newer than step 10."""
    saved = [save(tmp_path, step, float(step), name=name.format(step)) for step in (9, 100, 10, 2)]
    assert list_checkpoints(tmp_path) == [saved[3], saved[0], saved[2], saved[1]]
    assert newest_valid(tmp_path)[0] == saved[1]


def test_order_does_not_depend_on_the_name(tmp_path: Path) -> None:
    """A name made of a metric that decides which checkpoint is the newest."""
    saved = [save(tmp_path, step, 1.0, name=name) for step, name in ((5, "b"), (7, "a"), (7, "0"))]
    assert list_checkpoints(tmp_path) == saved, "at equal steps the time of the save decides"


def test_the_newest_valid_one_is_found_and_the_skipped_ones_are_named(tmp_path: Path) -> None:
    """A crash loop on a half-written newest directory, or a fall-back that nobody is told of."""
    saved = [save(tmp_path, step, float(step)) for step in (8, 9, 10, 11)]
    (saved[3] / FIRST).write_bytes(b"")
    (saved[2] / MANIFEST_NAME).unlink()
    (saved[0] / FIRST).unlink()
    found, skipped = newest_valid(tmp_path)
    assert found == saved[1] and value_in(saved[1]) == 9.0
    assert len(skipped) == 2, "what is older than the one that is used does not matter"
    assert any("step=10: " in line and MANIFEST_NAME in line for line in skipped)
    assert any("step=11: " in line and "rank-0.pt has 0 bytes" in line for line in skipped)


def test_only_checkpoints_are_listed(tmp_path: Path) -> None:
    """A directory of logs that is reported as a damaged checkpoint; a link that retention deletes through."""
    checkpoint = save(tmp_path, 1, 1.0)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "a.csv").write_text("")
    (tmp_path / "best").symlink_to(checkpoint)
    (tmp_path / "notes.pt").write_text("")
    assert list_checkpoints(tmp_path) == [checkpoint]
    assert newest_valid(tmp_path) == (checkpoint, [])


def test_a_root_without_checkpoints_has_none(tmp_path: Path) -> None:
    """A first run that fails because there is nothing to resume from."""
    assert newest_valid(tmp_path) == newest_valid(tmp_path / "no") == (None, [])
    assert list_checkpoints(tmp_path / "no") == []
