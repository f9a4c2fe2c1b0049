"""The measure of growth: it finds what stays, and takes no notice of what passes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from tests.faults.usage import NUM_LOOKS, UsageLog


def watch(monkeypatch: pytest.MonkeyPatch, at: Callable[[int], Any], num_looks: int = 3 * NUM_LOOKS) -> UsageLog:
    """Look at this process, a quarter of a second apart, and do something before each look."""
    now = [0.0]
    monkeypatch.setattr("tests.faults.usage.time.monotonic", lambda: now[0])
    log = UsageLog(1.0, 8.0)
    for number in range(num_looks):
        at(number)
        log.look([os.getpid()])
        now[0] += 0.25
    return log


def test_a_descriptor_that_stays_open_is_growth(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leak of a long run would not be found."""
    with ExitStack() as kept:
        log = watch(monkeypatch, lambda number: kept.enter_context(tempfile.TemporaryFile()))
    assert log.growth_within()["descriptors"] > 0.05


def test_what_is_open_for_a_moment_is_no_growth(monkeypatch: pytest.MonkeyPatch) -> None:
    """A save in the last look would be taken for a leak, in a run of hours."""
    with ExitStack() as held:

        def pass_by(number: int) -> None:
            held.close()
            if number % 3:
                held.enter_context(tempfile.TemporaryFile())

        growth = watch(monkeypatch, pass_by).growth_within()
    assert growth["descriptors"] == growth["threads"] == 0


def test_what_is_closed_for_a_moment_is_no_growth(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher that starts its ranks anew in its first looks would have grown in its last ones."""
    with ExitStack() as held:

        def leave_out(number: int) -> None:
            held.close()
            if number not in (6, 7):
                held.enter_context(tempfile.TemporaryFile())

        growth = watch(monkeypatch, leave_out).growth_within()
    assert growth["descriptors"] == 0


def test_a_number_that_is_given_to_another_process_is_not_that_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two ranks, hours apart, the second would be the growth of the first."""
    starts = ["1"]
    monkeypatch.setattr("tests.faults.usage.began", lambda pid: starts[-1])
    with ExitStack() as kept:

        def become_another(number: int) -> None:
            if number == NUM_LOOKS + 8:
                starts.append("2")
                for _ in range(20):
                    kept.enter_context(tempfile.TemporaryFile())

        log = watch(monkeypatch, become_another, num_looks=5 * NUM_LOOKS)
    assert log.growth_within()["descriptors"] == 0


def test_a_process_that_did_not_live_long_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its beginning would be compared with itself."""
    log = watch(monkeypatch, lambda number: None, num_looks=40)
    assert log.growth_within() == {} == log.growth_among()
