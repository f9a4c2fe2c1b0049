"""Stacks of ranks as text."""

from __future__ import annotations

import os
from pathlib import Path

from drivetrain.launch.processes import is_stopped, own_usage, usage_of
from drivetrain.launch.stacks import SILENT, read_stacks, stacks_text, tidy


def test_the_thread_that_reports_is_left_out() -> None:
    """Half of what is shown would be our own thread."""
    heart = 'Thread 0x1 (most recent call first):\n  File "x/launch/heart.py", line 1 in _run\n'
    main = 'Current thread 0x2 (most recent call first):\n  File "train.py", line 3 in main'
    assert tidy(f"{heart}\n{main}\n") == main
    assert tidy("") == SILENT


def test_the_stalled_rank_comes_last() -> None:
    """What has to be read would not be at the end of the screen."""
    text = stacks_text({0: "zero", 1: "one", 2: "two"}, [1])
    assert text.endswith("Rank 0:\nzero\n\nRank 2:\ntwo\n\nRank 1 (stalled):\none")


def test_a_rank_without_python_says_so(tmp_path: Path) -> None:
    """A signal that nobody handles would kill a rank that has just begun."""
    assert "not begun" in read_stacks({0: 1 << 22}, lambda rank: tmp_path)[0]


def test_usage_is_that_of_living_processes() -> None:
    """A rank would count as idle while it works."""
    usage, own = usage_of(os.getpid()), own_usage()
    assert usage is not None and own is not None
    assert own.processor_s > 0 and usage.io_bytes > 0
    assert usage_of(1 << 22) is None and not is_stopped(os.getpid()) and not is_stopped(1 << 22)
