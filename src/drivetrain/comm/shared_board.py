"""Small messages between the ranks of one machine, over memory that they share: no system call, nothing on the wire.

Each rank has a row of slots that it alone writes. A message is a number and a few values, with a checksum over both: a
reader that comes in the middle of a write, or on a processor that reorders writes, sees that and looks again. Nobody
overwrites what another has still to read: to write message `n` a rank has read `n - 2` of all, so all have written
`n - 2` and read `n - 4`, whose slot it is.

    own slot <- message      (before the last backward)
    ...                      (backward and gradient sync: the others come as far, too)
    all slots -> sums        (they are there already, as a rule)

What all ranks say most of the time is agreed on beforehand (`Usual`), and its message is a number alone: one word,
which no reader can come in the middle of.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol
from zlib import crc32

from drivetrain.base.errors import ProcessGroupError
from drivetrain.base.pulse import PULSE

MAX_VALUES = 16

_RING = 4
_SLOT_BYTES = 256  # four cache lines; a message has up to 8 + 8 * MAX_VALUES + 4
_CHECK_BYTES = 4
_SPINS = 50
_LONGEST_PAUSE_S = 1e-3
_LOOK_EVERY_S = 0.05
_USUAL = 1 << 63  # beside the number of a message that says what is usual
_SHAPES = [struct.Struct(f"=Q{number}d") for number in range(MAX_VALUES + 1)]


class _Objects(Protocol):
    rank: int
    world_size: int

    def broadcast(self, obj: Any, src: int = 0) -> Any: ...

    def gather_objects(self, obj: Any) -> list[Any]: ...


class Usual:
    """What each rank says in most messages of a kind; all ranks make the same.

    Attributes:
        values: Of a rank.
        rows: Of all ranks.
        sums: Over all ranks.

    Args:
        values: Of a rank.
        world_size: Ranks.
    """

    __slots__ = ("rows", "sums", "values")

    def __init__(self, values: tuple[float, ...], world_size: int) -> None:
        self.values = values
        self.rows: Sequence[tuple[float, ...]] = [values] * world_size
        self.sums: Sequence[float] = [value * world_size for value in values]


class _Message:
    """One that was sent; `rows` is what all ranks said, once it was read."""

    __slots__ = ("number", "rows", "shape", "usual")

    def __init__(self, number: int, shape: Any, usual: Usual | None = None) -> None:
        self.number, self.shape, self.usual = number, shape, usual
        self.rows: Sequence[tuple[float, ...]] | None = None


class SharedBoard:
    """Where the ranks of one machine leave small messages for each other.

    Args:
        file: An open file of `size_of(world_size)` bytes, the same one for all ranks.
        rank: This rank.
        world_size: How many ranks there are.
        timeout_s: How long to wait for a rank that lives and says nothing.
    """

    def __init__(self, file: int, rank: int, world_size: int, *, timeout_s: float) -> None:
        self.rank, self.world_size, self.timeout_s = rank, world_size, timeout_s
        self._file = file
        self._memory = mmap.mmap(file, size_of(world_size))
        self._words = memoryview(self._memory).cast("Q")
        # Where the numbers of all ranks' messages stand, for each place in the ring.
        starts = [[(other * _RING + place) * _SLOT_BYTES // 8 for other in range(world_size)] for place in range(_RING)]
        self._numbers, self._own_numbers = starts, [one[rank] for one in starts]
        none = _Message(0, None)
        none.rows = []
        self._last = (none, none)
        _lock(file, rank)  # held as long as this process lives; see `_require_alive`

    def post(self, values: Sequence[float], usual: Usual | None = None) -> Callable[[], Sequence[tuple[float, ...]]]:
        """Leave a message for the others.

        Ranks: all, with as many values (at most `MAX_VALUES`), and with what is usual or without it.

        Args:
            values: They are the usual ones if they are `usual.values` itself.
            usual: What ranks mostly say here.

        Returns:
            A function that gives the messages of all ranks, in their order; it waits for those that are behind. Where
            all said what is usual they are `usual.rows` itself.
        """
        before, last = self._last
        if before.rows is None:
            self._read(before)
        PULSE.posts += 1
        number = last.number + 1
        message = _Message(number, _SHAPES[len(values)], usual)
        word = self._own_numbers[number % _RING]
        if usual is not None and values is usual.values:
            self._words[word] = number | _USUAL
        else:
            body = message.shape.pack(number, *values)
            end = 8 * word + len(body) + _CHECK_BYTES
            self._memory[8 * word : end] = body + crc32(body).to_bytes(_CHECK_BYTES, "little")
        self._last = (last, message)
        return partial(self._read, message)

    def close(self) -> None:
        """Leave: those who wait for this rank are told that it is gone."""
        self._words.release()
        self._memory.close()
        os.close(self._file)

    def _read(self, message: _Message) -> Sequence[tuple[float, ...]]:
        """What all ranks said; kept, since their slots are used again."""
        if message.rows is None:
            usual = message.usual
            if usual is not None:  # as a rule all say so, and are there already
                words, number = self._words, message.number | _USUAL
                for index in self._numbers[message.number % _RING]:
                    if words[index] != number:
                        break
                else:
                    message.rows = usual.rows
                    return usual.rows
            rows = [self._wait(rank, message) for rank in range(self.world_size)]
            message.rows = usual.rows if usual is not None and rows == usual.rows else rows
        return message.rows

    def _wait(self, rank: int, message: _Message) -> tuple[float, ...]:
        for _ in range(_SPINS):
            values = self._look(rank, message)
            if values is not None:
                return values
            os.sched_yield()
        pause_s, began = 2e-5, time.monotonic()
        looked = began
        while (values := self._look(rank, message)) is None:
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            now = time.monotonic()
            if now - looked > _LOOK_EVERY_S:
                looked = now
                if _is_gone(self._file, rank) and self._look(rank, message) is None:
                    raise self._lost(rank, "is gone")
            if now - began > self.timeout_s:
                raise self._lost(rank, f"has said nothing for {self.timeout_s:g} s")
        return values

    def _look(self, rank: int, message: _Message) -> tuple[float, ...] | None:
        start = 8 * self._numbers[message.number % _RING][rank]
        if message.usual is not None and self._words[start // 8] == message.number | _USUAL:
            return message.usual.values
        end = start + message.shape.size
        body = self._memory[start:end]
        number, *values = message.shape.unpack(body)
        check = self._memory[end : end + _CHECK_BYTES]
        if number != message.number or int.from_bytes(check, "little") != crc32(body):
            return None
        return tuple(values)

    def _lost(self, rank: int, what: str) -> ProcessGroupError:
        return ProcessGroupError(
            f"Rank {rank} {what}; this one waited for its part of a decision.",
            code="rank-lost",
            do="Look for the first error of that rank. If it was only slow, raise timeout_s of the strategy.",
            rank=(self.rank, self.world_size),
        )


def open_board(collectives: _Objects, *, timeout_s: float) -> SharedBoard | None:
    """A board of all ranks, if they can share memory: on one machine, with one file system for it.

    Ranks: all (two small messages).
    """
    if not hasattr(os, "sched_yield"):  # no POSIX
        return None
    path = collectives.broadcast(_make_file(collectives.world_size) if collectives.rank == 0 else None)
    if path is None:
        return None
    try:
        file = os.open(path, os.O_RDWR)
    except OSError:
        file = -1
    is_shared = all(collectives.gather_objects(file != -1))
    if collectives.rank == 0:
        os.unlink(path)  # nothing is left over, however the run ends
    if is_shared:
        board = SharedBoard(file, collectives.rank, collectives.world_size, timeout_s=timeout_s)
        collectives.gather_objects(None)  # from here on all hold their locks
        return board
    if file != -1:
        os.close(file)
    return None


def size_of(world_size: int) -> int:
    """Bytes of the board's file."""
    return world_size * _RING * _SLOT_BYTES


def _make_file(world_size: int) -> str | None:
    memory = Path("/dev/shm")
    try:
        file, path = tempfile.mkstemp(prefix="drivetrain-", dir=memory if memory.is_dir() else None)
    except OSError:
        return None
    try:
        if os.write(file, bytes(size_of(world_size))) == size_of(world_size):
            return path
    except OSError:  # no room
        pass
    finally:
        os.close(file)
    os.unlink(path)
    return None


def _lock(file: int, rank: int) -> None:
    import fcntl

    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, rank)


def _is_gone(file: int, rank: int) -> bool:
    """Its process has ended or left: the system has taken its lock away."""
    import fcntl

    try:
        _lock(file, rank)
    except OSError:
        return False
    fcntl.lockf(file, fcntl.LOCK_UN, 1, rank)
    return True
