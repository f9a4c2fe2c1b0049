"""What is written down of a failure."""

from __future__ import annotations

from pathlib import Path

from drivetrain.launch.failure_file import FailureFile
from drivetrain.launch.rank_end import RankEnd, make_rank_error

CAUSE = RankEnd(1, "raised", 10.0, 1, "KeyError: 'x'", "Traceback\nKeyError: 'x'\n")
CONSEQUENCE = RankEnd(0, "raised", 10.1, 1, "RuntimeError: closed", "Traceback\nRuntimeError: closed\n")


def test_the_cause_is_the_last_block_and_others_are_labelled(tmp_path: Path) -> None:
    """The first error in the file would be taken for the cause."""
    ends = [CAUSE, CONSEQUENCE]
    error = make_rank_error(ends, num_ranks=2)
    failures = FailureFile(tmp_path / "failures")
    failures.add(error, ends)
    assert failures.path is not None and str(failures.path) in str(error)
    blocks = failures.path.read_text().strip().split("\n\n")
    assert blocks[-1] == "---- CAUSE: rank 1 failed: KeyError: 'x'\nTraceback\nKeyError: 'x'"
    assert blocks[-2].startswith("---- CONSEQUENCE, or failed by itself after the cause: rank 0 failed: RuntimeError")
    assert str(error).endswith("KeyError: 'x'")


def test_a_folder_that_cannot_be_made_does_not_hide_the_failure(tmp_path: Path) -> None:
    """A full disk would be shown in place of the error."""
    (tmp_path / "file").touch()
    error = make_rank_error([CAUSE], num_ranks=2)
    FailureFile(tmp_path / "file" / "below").add(error, [CAUSE])
    FailureFile(None).add(error, [CAUSE])
    assert "All ranks" not in str(error)
