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


def test_a_process_that_did_not_live_long_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its beginning would be compared with itself."""
    log = watch(monkeypatch, lambda number: None, num_looks=40)
    assert log.growth_within() == {} == log.growth_among()
