from __future__ import annotations

import random
from pathlib import Path

import pytest

from drivetrain.base.checksum import CHUNK_BYTES, Checksum, checksum_file

ROW_BYTES = 128 * 1024


def checksum_of(data: bytes, *, cut: int = 1 << 30) -> str:
    whole = Checksum()
    for start in range(0, len(data), cut):
        whole.update(memoryview(data)[start : start + cut])
    return whole.hexdigest()


@pytest.mark.parametrize("length", [0, 1, 7, 8, ROW_BYTES, ROW_BYTES + 3, 1 << 20, CHUNK_BYTES, 2 * CHUNK_BYTES + 5])
def test_a_file_has_the_checksum_of_what_was_written(length: int, tmp_path: Path) -> None:
    """A good checkpoint that is called damaged, for its length or for the pieces in which it was written."""
    data = random.Random(length).randbytes(length)
    (tmp_path / "file").write_bytes(data)
    expected = checksum_file(tmp_path / "file")
    assert [checksum_of(data), checksum_of(data, cut=300_007)] == [expected] * 2
    if length < 10_000:
        assert checksum_of(data, cut=1) == expected


def test_every_flipped_bit_changes_it() -> None:
    """A bit that flips and is trained on."""
    draw = random.Random(0)
    data = bytearray(draw.randbytes(3 * ROW_BYTES))
    expected = checksum_of(bytes(data))
    for bit in [0, 8 * len(data) - 1, *draw.sample(range(8 * len(data)), 62)]:
        data[bit // 8] ^= 1 << bit % 8
        assert checksum_of(bytes(data)) != expected, bit
        data[bit // 8] ^= 1 << bit % 8
    assert checksum_of(bytes(data)) == expected


def test_the_same_flip_in_two_rows_changes_it() -> None:
    """The top bits of two words in one lane would cancel in a sum, and those of numbers are their signs."""
    data = bytearray(4 * ROW_BYTES)
    expected = checksum_of(bytes(data))
    for bit in range(56, 64):
        changed = bytearray(data)
        for row in (0, 2):
            changed[row * ROW_BYTES + bit // 8] ^= 1 << bit % 8
        assert checksum_of(bytes(changed)) != expected, bit


@pytest.mark.parametrize("block", [8, 4096, ROW_BYTES, CHUNK_BYTES])
def test_swapped_blocks_change_it(block: int) -> None:
    """Blocks of the disk in another order: each of them by itself is as it was."""
    first, second = b"\0" * block, b"\0\0\0\0\0\0\0\x40" * (block // 8)
    assert checksum_of(first + second) != checksum_of(second + first)


def test_zeros_at_the_end_change_it() -> None:
    """A tail that the file system filled with zeros, or one of zeros that is gone."""
    found = {
        checksum_of(b"\0" * length) for length in (0, 1, 8, ROW_BYTES, ROW_BYTES + 1, CHUNK_BYTES, CHUNK_BYTES + 1)
    }
    assert len(found) == 7


def test_the_checksum_of_a_release_stays() -> None:
    """Checkpoints of an earlier version would all be called damaged."""
    assert checksum_of(bytes(range(256)) * 4096) == "bdbc90f7016879d011bc7ad5c0bbf80e8f94fc2f3a7ff342ba9f44de63d02be0"
