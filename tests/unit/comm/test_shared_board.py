"""Small messages over shared memory: each is read once, whole, and by all; who is gone is named."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from drivetrain.base.errors import ProcessGroupError
from drivetrain.comm.shared_board import SharedBoard, Usual, open_board, size_of
from tests.unit.comm.fake_objects import FakeObjects

NUM_RANKS = 3


def open_file(path: Path) -> int:
    path.write_bytes(bytes(size_of(NUM_RANKS)))
    return os.open(path, os.O_RDWR)


@pytest.fixture
def boards(tmp_path: Path) -> Iterator[list[SharedBoard]]:
    """Those of all ranks, in one process: it must not wait for itself."""
    path = tmp_path / "board"
    path.write_bytes(bytes(size_of(NUM_RANKS)))
    made = [SharedBoard(os.open(path, os.O_RDWR), rank, NUM_RANKS, timeout_s=5.0) for rank in range(NUM_RANKS)]
    yield made
    for board in made:
        board.close()


def test_all_ranks_read_the_same_messages_in_the_order_of_ranks(boards: list[SharedBoard]) -> None:
    """Ranks would come to different decisions."""
    for step in range(20):
        collects = [board.post([rank, step + 0.1, -1e300]) for rank, board in enumerate(boards)]
        for collect in reversed(collects):
            assert collect() == [(rank, step + 0.1, -1e300) for rank in range(NUM_RANKS)]


def test_a_message_that_is_asked_for_late_is_still_there(boards: list[SharedBoard]) -> None:
    """A window's message is read after later ones were sent: its slot would hold another by then."""
    late = [board.post([1.0, rank]) for rank, board in enumerate(boards)]
    for step in range(9):
        for collect in [board.post([float(step)]) for board in boards]:
            assert collect() == [(float(step),)] * NUM_RANKS
    assert [collect() for collect in late] == [[(1.0, rank) for rank in range(NUM_RANKS)]] * NUM_RANKS


def test_what_all_say_as_a_rule_is_told_from_everything_else(boards: list[SharedBoard]) -> None:
    """A rank's wish to stop would be taken for nothing to say, or the usual message of an earlier window for this."""
    usual = [Usual((4.0, 0.0), NUM_RANKS) for _ in boards]
    for step in range(27):
        own = [(1.0 + rank, float(step)) if step >> rank & 1 else usual[rank].values for rank in range(NUM_RANKS)]
        collects = [board.post(own[rank], usual[rank]) for rank, board in enumerate(boards)]
        for collect, one in zip(collects, usual, strict=True):
            assert collect() == own
            assert (collect() is one.rows) == all(values == (4.0, 0.0) for values in own)


def test_usual_messages_that_are_asked_for_late_are_still_there(boards: list[SharedBoard]) -> None:
    """Their slots hold others by then."""
    usual = [Usual((1.0,), NUM_RANKS) for _ in boards]
    late = [board.post(one.values, one) for board, one in zip(boards, usual, strict=True)]
    for step in range(9):
        for collect in [board.post([float(step)]) for board in boards]:
            assert collect() == [(float(step),)] * NUM_RANKS
    assert [collect() for collect in late] == [[(1.0,)] * NUM_RANKS] * NUM_RANKS


def test_half_a_message_is_not_read(tmp_path: Path) -> None:
    """A reader in the middle of a write would take numbers that nobody has sent."""
    path = tmp_path / "board"
    file = open_file(path)
    board = SharedBoard(file, 0, NUM_RANKS, timeout_s=0.0)
    others = [SharedBoard(os.open(path, os.O_RDWR), rank, NUM_RANKS, timeout_s=0.0) for rank in (1, 2)]
    for other in others:
        other.post([2.0, 3.0])
    collect = board.post([2.0, 3.0])
    content = bytearray(path.read_bytes())
    number_of_rank_1 = next(place for place in range(len(content) // NUM_RANKS, len(content)) if content[place])
    content[number_of_rank_1 + 8] ^= 1  # in its first value
    path.write_bytes(content)
    with pytest.raises(ProcessGroupError, match="Rank 1"):
        collect()


def test_a_rank_that_has_ended_is_named_at_once(tmp_path: Path) -> None:
    """Survivors would wait for the whole timeout of the group."""
    assert wait_for_child(tmp_path / "board", lives=False, timeout_s=1000.0) == "Rank 1 is gone"


def test_a_rank_that_lives_and_says_nothing_is_waited_for_as_long_as_the_group_does(tmp_path: Path) -> None:
    """A stalled rank would hang the others for ever."""
    assert wait_for_child(tmp_path / "board", lives=True, timeout_s=0.2) == "Rank 1 has said nothing for 0.2 s"


def wait_for_child(path: Path, *, lives: bool, timeout_s: float) -> str:
    """What rank 0 says of rank 1, another process that never sends its message."""
    own, other, silence = open_file(path), os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        theirs = SharedBoard(os.open(path, os.O_RDWR), 1, 2, timeout_s=timeout_s)
        os.write(other[1], b"!")
        if lives:
            os.close(silence[1])
            os.read(silence[0], 1)  # until the parent lets go
        assert theirs.rank == 1
        os._exit(0)
    try:
        os.read(other[0], 1)
        board = SharedBoard(own, 0, 2, timeout_s=timeout_s)
        with pytest.raises(ProcessGroupError) as caught:
            board.post([1.0])()
        board.close()
    finally:
        for end in (*other, *silence):
            os.close(end)
        os.waitpid(child, 0)
    assert caught.value.code == "rank-lost"
    return caught.value.what.split(";")[0]


def test_ranks_that_cannot_open_the_same_file_have_no_board() -> None:
    """Ranks of two machines, or of two containers, would wait for messages that never come."""
    elsewhere = tempfile.mktemp()
    assert open_board(FakeObjects(1, 2, {0: elsewhere}), timeout_s=1.0) is None


def test_nothing_is_left_in_the_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine's memory would fill up with the boards of killed runs."""
    memory = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path(tempfile.gettempdir())
    before = set(memory.glob("drivetrain-*"))
    board = open_board(FakeObjects(0, 1, {}), timeout_s=1.0)
    assert board is not None and board.post([4.0])() == [(4.0,)]
    assert set(memory.glob("drivetrain-*")) == before
    board.close()
