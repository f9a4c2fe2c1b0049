"""Intervals are read with their unit, and counted from the start of the run."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from datetime import timedelta
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain import ConfigError
from drivetrain.base.interval import Crossings, Interval
from drivetrain.base.progress import Progress


@pytest.mark.parametrize(
    ("text", "length", "unit"),
    [
        ("500 steps", 500, "step"),
        ("1 step", 1, "step"),
        ("500steps", 500, "step"),
        ("  500  Steps ", 500, "step"),
        ("64 micro-batches", 64, "micro-batch"),
        ("64 micro_batches", 64, "micro-batch"),
        ("1 micro-batch", 1, "micro-batch"),
        ("1e6 samples", 10**6, "sample"),
        ("1_000_000 samples", 10**6, "sample"),
        ("2.5e3 samples", 2500, "sample"),
        ("2 epochs", 2, "epoch"),
        ("0.25 epochs", Fraction(1, 4), "epoch"),
        (".1 epochs", Fraction(1, 10), "epoch"),
        ("90 s", 90, "second"),
        ("0.5 s", Fraction(1, 2), "second"),
        ("15 min", 900, "second"),
        ("2 h", 7200, "second"),
        ("1 day", 86400, "second"),
        (timedelta(minutes=1, microseconds=1), Fraction(60_000_001, 10**6), "second"),
    ],
)
def test_an_interval_is_read_with_its_unit(text: Any, length: Any, unit: str) -> None:
    """Half an epoch would be rounded, or minutes be taken for micro-batches."""
    interval = Interval.parse(text)
    assert (interval.length, interval.unit) == (length, unit)
    assert interval == Interval(Fraction(length), unit)
    assert Interval.parse(str(interval)) == interval or unit == "second"
    assert pickle.loads(pickle.dumps(interval)) == interval and Interval.parse(interval) is interval


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("0 steps", "every='0 steps' is not above 0"),
        ("-5 steps", "every='-5 steps' is not above 0"),
        ("500", "every='500' has no unit"),
        ("500 stepps", "Did you mean 'steps'?"),
        ("500 batches", "Did you mean 'micro-batches'?"),
        ("3 epoche", "Did you mean 'epochs'?"),
        ("2.5 steps", "there is no part of a step"),
        ("1e-1 samples", "there is no part of a sample"),
        ("steps", "every='steps' is not a number and a unit"),
        ("", "every='' is not a number and a unit"),
        ("nan epochs", "is not a number and a unit"),
        (timedelta(0), "is not above 0"),
        (500, "every=500 is not a number and a unit"),
        (None, "every=None is not a number and a unit"),
    ],
)
def test_what_is_no_interval_is_refused_with_the_nearest_unit(value: Any, text: str) -> None:
    """It would be read as something else, or be found out when it is first due."""
    with pytest.raises(ConfigError, match="interval") as caught:
        Interval.parse(value, name="every")
    assert caught.value.code == "interval" and text in str(caught.value) and '"500 steps"' in caught.value.do


@pytest.mark.parametrize("length", [0, -1, True, "3", float("inf"), float("nan"), 1.5])
def test_a_length_that_means_nothing_is_refused(length: Any) -> None:
    """An interval made in code would be checked less than one made of text."""
    with pytest.raises(ConfigError):
        Interval(length, "steps")


def test_an_interval_shows_as_it_is_written() -> None:
    """A message would show a fraction that nobody wrote."""
    made = [Interval(1, "epochs"), Interval(0.25, "epochs"), Interval(64, "micro-batch"), Interval(15, "min")]
    assert [str(one) for one in made] == ["1 epoch", "0.25 epochs", "64 micro-batches", "900 s"]
    assert str(Interval(250, "steps") * 2) == repr(Interval(500, "step")) == "500 steps"


def walk(windows: Iterable[int], *, rounds: int = 10, samples: int = 4, start: Progress | None = None) -> Any:
    """The progress after each window of so many micro-batches."""
    progress = start if start is not None else Progress()
    for size in windows:
        progress.step += 1
        progress.micro_step += size
        progress.samples += size * samples
        progress.seconds += size * 0.25
        progress.epoch_micro_step += size
        yield progress
        if progress.epoch_micro_step == rounds:
            progress.epoch, progress.epoch_micro_step = progress.epoch + 1, 0


def crossed(text: str, windows: Iterable[int], **options: Any) -> list[int]:
    """The micro-batches done when a multiple was crossed, once for each multiple."""
    found = []
    crossings = Crossings(Interval.parse(text))
    crossings.begin(options.get("start") or Progress(), 10)
    for progress in walk(windows, **options):
        found += [progress.micro_step] * crossings.take(progress, 10)
    return found


@pytest.mark.parametrize(
    ("text", "size", "expected"),
    [
        ("3 steps", 2, [6, 12, 18]),
        ("4 micro-batches", 1, [4, 8, 12, 16, 20]),
        ("4 micro-batches", 5, [5, 10, 15, 20, 20]),
        ("4 micro-batches", 10, [10, 10, 20, 20, 20]),
        ("12 samples", 1, [3, 6, 9, 12, 15, 18]),
        ("10 samples", 1, [3, 5, 8, 10, 13, 15, 18, 20]),
        ("0.5 epochs", 1, [5, 10, 15, 20]),
        ("0.3 epochs", 1, [3, 6, 9, 12, 15, 18]),
        ("0.1 epochs", 1, [*range(1, 21)]),
        ("1 epoch", 5, [10, 20]),
        ("1.5 epochs", 1, [15]),
        ("1.5 s", 1, [6, 12, 18]),
    ],
)
def test_an_interval_is_due_where_a_multiple_is_crossed(text: str, size: int, expected: list[int]) -> None:
    """It would never come where it is no multiple of the window, or drift away from its multiples."""
    assert crossed(text, [size] * (20 // size)) == expected


SIZES = st.lists(st.sampled_from([1, 2, 5, 10]), min_size=1, max_size=12)


@given(text=st.sampled_from(["3 micro-batches", "10 samples", "0.35 epochs", "7 samples"]), sizes=SIZES)
def test_the_number_of_crossings_does_not_depend_on_the_windows(text: str, sizes: list[int]) -> None:
    """A schedule by samples would be another when gradients are accumulated."""
    fits = [size for size in (10 // one for one in sizes) for _ in range(10 // size)]
    assert len(crossed(text, fits)) == len(crossed(text, [1] * sum(fits)))


@given(text=st.sampled_from(["3 steps", "10 samples", "0.35 epochs", "0.7 s"]), stop=st.integers(0, 19))
def test_a_resumed_run_goes_on_in_phase(text: str, stop: int) -> None:
    """It would begin a new interval, so that one longer than the time between two failures never ends."""
    whole = crossed(text, [1] * 20)
    saved = Progress()
    for progress in walk([1] * stop):
        saved.load_state_dict(progress.state_dict())
    if saved.epoch_micro_step == 10:
        saved.epoch, saved.epoch_micro_step = saved.epoch + 1, 0
    assert crossed(text, [1] * (20 - stop), start=saved) == [one for one in whole if one > stop]


def test_parts_of_epochs_without_a_length_are_refused() -> None:
    """They would never come."""
    with pytest.raises(ConfigError, match="no length") as caught:
        Crossings(Interval(0.5, "epochs")).begin(Progress(), None)
    assert caught.value.code == "interval"


def test_ranks_take_the_seconds_of_rank_0_with_few_messages() -> None:
    """Ranks would save at different steps and wait for each other for ever; or send a message for each step."""
    messages: list[Any] = []

    def say(value: Any) -> Any:
        messages.append(value)
        return value

    def run(share: Any, second_of_step: Any) -> list[int]:
        crossings, progress, found = Crossings(Interval(1000, "s"), share), Progress(), []
        crossings.begin(progress)
        for step in range(1, 4001):
            progress.step, progress.seconds = step, second_of_step(step)
            found += [step] * crossings.take(progress)
        return found

    zero = run(say, lambda step: step * 0.75)
    num_messages = len(messages)
    one = run(lambda value: messages.pop(0), lambda step: step * 3.0)
    assert zero == one and messages == []
    assert [step - 4000 * (index + 1) // 3 in range(3) for index, step in enumerate(zero)] == [True] * 3
    assert num_messages < 60
