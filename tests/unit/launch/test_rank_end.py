"""Which rank failed first, and what is said about it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from drivetrain.launch.rank_end import (
    RankEnd,
    agreed_exit_code,
    first_failure,
    make_rank_error,
    may_start_again,
    read_rank_end,
)


def write_error(directory: Path, **own: Any) -> None:
    own = {"rank": 1, "time": 5.0, "kind": "raised", "exit_code": 1} | own
    message = {
        "message": "ValueError: x",
        "extraInfo": {"py_callstack": "Traceback\nValueError: x\n", "timestamp": "5"},
    }
    (directory / "error.json").write_text(json.dumps({"message": message, "drivetrain": own}))


def test_the_earliest_exception_is_the_cause() -> None:
    """A survivor's lost connection would be shown in place of the error."""
    cause = RankEnd(2, "raised", 10.0, 1, "KeyError: 'x'", "Traceback\nKeyError: 'x'\n")
    consequence = RankEnd(0, "raised", 10.1, 1, "RuntimeError: Connection closed by peer")
    assert first_failure([consequence, cause]) is cause


def test_a_silent_death_comes_before_what_survivors_raise_at_that_moment() -> None:
    """The kernel closes a dying rank's connections before its death can be seen."""
    death = RankEnd(1, "died", 10.1, -9)
    consequence = RankEnd(0, "raised", 10.0, 1, "RuntimeError: Connection reset by peer")
    assert first_failure([consequence, death]) is death


def test_a_silent_death_long_after_an_exception_is_its_consequence() -> None:
    """A rank that aborts because another one raised would take the blame."""
    cause = RankEnd(0, "raised", 10.0, 1, "KeyError: 'x'")
    assert first_failure([cause, RankEnd(1, "died", 12.0, -6)]) is cause


def test_the_error_ends_with_the_traceback_of_the_first_rank() -> None:
    """What has to be read would not be the last thing on the screen."""
    cause = RankEnd(1, "raised", 10.0, 1, "KeyError: 'x'", "Traceback (most recent call last):\nKeyError: 'x'\n")
    error = make_rank_error([RankEnd(0, "raised", 11.0, 1, "RuntimeError: y"), cause], num_ranks=2)
    assert (error.failed_rank, error.exit_code, error.code) == (1, 1, "rank-failed")
    assert str(error).endswith("KeyError: 'x'")
    assert "rank 1 of 2 failed: KeyError: 'x'. Rank 0 failed after it" in str(error)


def test_deaths_without_a_traceback_are_explained() -> None:
    """A killed rank would be reported as nothing but a number."""
    assert "killed by SIGKILL" in str(make_rank_error([RankEnd(0, "died", 1.0, -9)], num_ranks=2))
    assert "exit code 0 before it had finished" in str(make_rank_error([RankEnd(0, "died", 1.0, 0)], num_ranks=2))
    assert "ended with exit code 3" in str(make_rank_error([RankEnd(0, "exited", 1.0, 3)], num_ranks=2))


def test_files_say_how_a_rank_ended(tmp_path: Path) -> None:
    """A rank that left properly, failed, or is at work would be taken for another."""
    assert read_rank_end(tmp_path, 1, exit_code=None, seen=1.0) is None
    died = read_rank_end(tmp_path, 1, exit_code=0, seen=1.0)
    assert died is not None and died.kind == "died"
    write_error(tmp_path)
    raised = read_rank_end(tmp_path, 1, exit_code=None, seen=time.time())
    assert raised == RankEnd(1, "raised", 5.0, 1, "ValueError: x", "Traceback\nValueError: x\n")
    (tmp_path / "finished").touch()
    finished = read_rank_end(tmp_path, 1, exit_code=None, seen=1.0)
    assert finished is not None and not finished.is_failure


def test_an_exit_code_is_agreed_only_if_every_rank_asked_for_it() -> None:
    """One rank's sys.exit would end the run as if all had wanted it."""
    exits = [RankEnd(rank, "exited", 1.0, 3) for rank in range(2)]
    assert agreed_exit_code(exits) == 3
    assert agreed_exit_code([exits[0], RankEnd(1, "exited", 1.0, 4)]) is None
    assert agreed_exit_code([exits[0], RankEnd(1, "raised", 1.0, 3)]) is None


def test_ranks_in_whose_place_others_have_gone_on_are_not_started_again(tmp_path: Path) -> None:
    """Two launches would take the run from each other in turn."""
    write_error(tmp_path, code="checkpoint-superseded")
    superseded = read_rank_end(tmp_path, 0, exit_code=1, seen=1.0)
    assert superseded is not None
    assert not may_start_again([superseded, RankEnd(1, "raised", 10.0, 1)], num_ranks=2)
    assert may_start_again([RankEnd(1, "raised", 10.0, 1)], num_ranks=2)
