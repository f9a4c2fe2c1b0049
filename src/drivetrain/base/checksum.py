"""A checksum about as fast as memory, so that a checkpoint can be checked each time it is loaded.

SHA-256 reads 0.5 to 2 GB a second on one core; loading takes less time than that. Here 16384 lanes of 64 bits are mixed
side by side with a few vectorised operations:

    lane = (lane ^ word) * odd;  lane ^= lane >> 32

Each step is one-to-one in the lane and in the word, so that a change in one word, a flipped bit for one, always changes
the result; any other change goes unseen by chance alone, once in about 2**64. Somebody who changes bytes on purpose can
make them fit: that is what the SHA-256 beside it is for.

A file is cut into chunks that are hashed by themselves, on several threads; the digest of the file is the SHA-256 of
its length and the digests of its chunks.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

_LANES = 1 << 14
_NARROW_LANES = 1 << 8
_PIECE_BYTES = 1 << 20  # read at a time: it is hashed while it is in the core's cache
CHUNK_BYTES = 8 * _PIECE_BYTES
_ODD = np.uint64(0x9E3779B97F4A7C15)  # 2**64 over the golden ratio
_HALF = np.uint64(32)
_MAX_THREADS = 4

_Words = NDArray[np.uint64]


class Checksum:
    """The checksum of bytes that come in pieces of any length."""

    def __init__(self) -> None:
        self._piece = np.zeros(_PIECE_BYTES, np.uint8)
        self._num_waiting = 0
        self._size_bytes = 0
        self._chunk = _Chunk()
        self._digests: list[bytes] = []

    def update(self, data: bytes | memoryview) -> None:
        """Take more bytes in."""
        rest = np.frombuffer(data, np.uint8)
        self._size_bytes += len(rest)
        while len(rest):
            taken = rest[: _PIECE_BYTES - self._num_waiting]
            self._piece[self._num_waiting : self._num_waiting + len(taken)] = taken
            self._num_waiting += len(taken)
            rest = rest[len(taken) :]
            if self._num_waiting == _PIECE_BYTES:
                self._absorb()

    def hexdigest(self) -> str:
        """The checksum of all bytes so far; nothing more can be taken in."""
        if self._num_waiting:
            self._absorb()
        if self._chunk.size_bytes:
            self._digests.append(self._chunk.digest())
        return _digest_of_file(self._size_bytes, self._digests)

    def _absorb(self) -> None:
        self._chunk.absorb(self._piece, self._num_waiting)
        self._num_waiting = 0
        if self._chunk.size_bytes == CHUNK_BYTES:
            self._digests.append(self._chunk.digest())
            self._chunk = _Chunk()


def checksum_file(path: Path) -> str:
    """The checksum of a file's content, each byte read once.

    Raises:
        OSError: It cannot be read.
    """
    size_bytes = path.stat().st_size
    num_chunks = -(-size_bytes // CHUNK_BYTES)
    num_threads = min(_MAX_THREADS, os.cpu_count() or 1, num_chunks)
    if num_threads < 2:
        return _digest_of_file(size_bytes, _digests_of_chunks(path, range(num_chunks)))
    # Each thread reads one stretch: a disk reads ahead of few readers that go straight on, not of those that skip.
    length = -(-num_chunks // num_threads)
    shares = [range(first, min(num_chunks, first + length)) for first in range(0, num_chunks, length)]
    with ThreadPoolExecutor(num_threads) as pool:
        found = pool.map(lambda share: _digests_of_chunks(path, share), shares)
        return _digest_of_file(size_bytes, itertools.chain.from_iterable(found))


def _digests_of_chunks(path: Path, indices: Iterable[int]) -> list[bytes]:
    piece = np.zeros(_PIECE_BYTES, np.uint8)
    digests = []
    with open(path, "rb", buffering=0) as file:
        for index in indices:
            file.seek(index * CHUNK_BYTES)
            chunk = _Chunk()
            while chunk.size_bytes < CHUNK_BYTES and (num_read := _read_full(file, piece)):
                chunk.absorb(piece, num_read)
            digests.append(chunk.digest())
    return digests


def _read_full(file: BinaryIO, piece: NDArray[np.uint8]) -> int:
    """Read a whole piece; less of it only at the end of the file."""
    view, num_read = memoryview(piece.data), 0
    while num_read < len(view) and (more := file.readinto(view[num_read:])):  # type: ignore[attr-defined]
        num_read += more
    return num_read


class _Chunk:
    def __init__(self) -> None:
        self.size_bytes = 0
        self._lanes = np.full(_LANES, _ODD, np.uint64)
        self._high = np.empty_like(self._lanes)

    def absorb(self, piece: NDArray[np.uint8], size_bytes: int) -> None:
        """Mix in the first bytes of a piece; what is left of its last row is overwritten with zeros."""
        row_bytes = 8 * _LANES
        end = -(-size_bytes // row_bytes) * row_bytes
        piece[size_bytes:end] = 0
        _mix(self._lanes, piece[:end].view("<u8").reshape(-1, _LANES), self._high)
        self.size_bytes += size_bytes

    def digest(self) -> bytes:
        narrow = np.zeros(_NARROW_LANES, np.uint64)
        _mix(narrow, self._lanes.reshape(-1, _NARROW_LANES), np.empty_like(narrow))
        return hashlib.sha256(narrow.astype("<u8").tobytes()).digest()


def _mix(lanes: _Words, rows: _Words, high: _Words) -> None:
    for row in rows:
        np.bitwise_xor(lanes, row, out=lanes)
        np.multiply(lanes, _ODD, out=lanes)
        np.right_shift(lanes, _HALF, out=high)
        np.bitwise_xor(lanes, high, out=lanes)


def _digest_of_file(size_bytes: int, digests: Iterable[bytes]) -> str:
    whole = hashlib.sha256(size_bytes.to_bytes(8, "little"))
    for digest in digests:
        whole.update(digest)
    return whole.hexdigest()
