"""When a run ends and validates, counted on monotone counters."""

from __future__ import annotations

import math
from typing import Any

import pytest

from drivetrain import ConfigError
from drivetrain.base.interval import Crossings, Interval
from drivetrain.base.progress import Progress
from drivetrain.loop.limits import Limits


def validations(
    limits: Limits, *, epochs: int, rounds: int, size: int = 1, has_length: bool = True
) -> list[tuple[int, int]]:
    """(epoch, micro-batches of the epoch done) of each validation, as the loop asks for them."""
    progress, found = Progress(), []
    interval = limits.val_interval
    crossings = Crossings(interval) if isinstance(interval, Interval) else None
    if crossings is not None:
        crossings.begin(progress, rounds if has_length else None)
    for _ in range(epochs):
        progress.epoch_micro_step = 0
        while progress.epoch_micro_step < rounds:
            before = progress.epoch_micro_step
            window = min(size, rounds - before)
            progress.step += 1
            progress.epoch_micro_step += window
            progress.micro_step += window
            progress.samples += 4 * window
            if crossings is not None:
                is_due = crossings.take(progress, rounds) > 0
            else:
                is_due = limits.validates_within(progress, rounds if has_length else None, before)
            if is_due:
                found.append((progress.epoch, progress.epoch_micro_step))
        if limits.validates_at_epoch_end(progress):
            found.append((progress.epoch, progress.epoch_micro_step))
        progress.epoch += 1
    return found


@pytest.mark.parametrize(
    ("options", "size", "expected"),
    [
        ({}, 1, [(0, 10), (1, 10), (2, 10)]),
        ({"val_every_epochs": 2}, 1, [(1, 10)]),
        ({"val_interval": 0.5}, 1, [(0, 5), (0, 10), (1, 5), (1, 10), (2, 5), (2, 10)]),
        ({"val_interval": 0.35}, 1, [(e, m) for e in range(3) for m in (3, 6, 9)]),
        ({"val_interval": 4}, 1, [(e, m) for e in range(3) for m in (4, 8)]),
        ({"val_interval": 4}, 3, [(e, m) for e in range(3) for m in (6, 9)]),
        ({"val_interval": 1}, 4, [(e, m) for e in range(3) for m in (4, 8, 10)]),
        ({"val_interval": 4, "val_every_epochs": 3}, 1, [(2, 4), (2, 8)]),
        ({"val_interval": 7, "val_every_epochs": None}, 1, [(0, 7), (1, 4), (2, 1), (2, 8)]),
        ({"val_interval": 25, "val_every_epochs": None}, 4, [(2, 8)]),
        ({"val_interval": 0.01}, 4, [(e, m) for e in range(3) for m in (4, 8, 10)]),
        ({"val_interval": "7 micro-batches"}, 1, [(0, 7), (1, 4), (2, 1), (2, 8)]),
        ({"val_interval": "7 steps"}, 1, [(0, 7), (1, 4), (2, 1), (2, 8)]),
        ({"val_interval": "3 steps"}, 4, [(0, 10), (1, 10), (2, 10)]),
        ({"val_interval": "28 samples"}, 2, [(0, 8), (1, 4), (2, 2), (2, 8)]),
        ({"val_interval": "2 epochs"}, 3, [(1, 10)]),
        ({"val_interval": "0.5 epochs"}, 1, [(0, 5), (0, 10), (1, 5), (1, 10), (2, 5), (2, 10)]),
        ({"val_interval": "0.5 epochs", "val_every_epochs": None}, 4, [(e, m) for e in range(3) for m in (8, 10)]),
        ({"val_interval": "1.5 epochs"}, 1, [(1, 5), (2, 10)]),
    ],
)
def test_validation_comes_when_it_was_asked_for(
    options: dict[str, Any], size: int, expected: list[tuple[int, int]]
) -> None:
    """It would never come where the interval is no multiple of the window, or come twice."""
    assert validations(Limits(**options), epochs=3, rounds=10, size=size) == expected


def test_a_loader_without_a_length_validates_by_count_or_at_the_end() -> None:
    """A stream would never be validated."""
    assert validations(Limits(val_interval=4), epochs=1, rounds=10, has_length=False) == [(0, 4), (0, 8)]
    assert validations(Limits(), epochs=1, rounds=10, has_length=False) == [(0, 10)]
    assert validations(Limits(val_interval="6 steps"), epochs=1, rounds=10, has_length=False) == [(0, 6)]
    Limits(val_interval=4).require_reachable(math.inf)
    with pytest.raises(ConfigError, match="has no length") as caught:
        Limits(val_interval=0.5).require_reachable(math.inf)
    assert caught.value.code == "val-interval"


@pytest.mark.parametrize(
    ("options", "progress", "is_reached"),
    [
        ({"max_epochs": 2}, Progress(epoch=1), False),
        ({"max_epochs": 2}, Progress(epoch=2), True),
        ({"max_epochs": 0}, Progress(), True),
        ({"max_epochs": -1}, Progress(epoch=10**6), False),
        ({"max_epochs": -1, "max_steps": 5}, Progress(step=4), False),
        ({"max_epochs": -1, "max_steps": 5}, Progress(step=5), True),
        ({"max_epochs": 2, "max_steps": 5}, Progress(step=5), True),
        ({"max_steps": 0}, Progress(), True),
    ],
)
def test_a_run_ends_at_the_first_limit(options: dict[str, int], progress: Progress, is_reached: bool) -> None:
    """It would go on, or never begin."""
    assert Limits(**options).is_reached(progress) is is_reached


def test_an_early_stop_waits_for_the_minimum() -> None:
    """`min_epochs` would mean nothing."""
    limits = Limits(min_epochs=2, min_steps=10)
    assert not limits.may_stop(Progress(epoch=2, step=9))
    assert not limits.may_stop(Progress(epoch=1, step=10))
    assert limits.may_stop(Progress(epoch=2, step=10))


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        ({"max_epochs": -2}, "limits", "max_epochs=-2"),
        ({"max_epochs": 1.5}, "limits", "max_epochs=1.5"),
        ({"max_steps": True}, "limits", "max_steps=True"),
        ({"val_interval": 0}, "val-interval", "val_check_interval=0"),
        ({"val_interval": 1.5}, "val-interval", "val_check_interval=1.5"),
        ({"val_interval": 0.0}, "val-interval", "val_check_interval=0.0"),
        ({"val_interval": True}, "val-interval", "val_check_interval=True"),
        ({"val_interval": None}, "val-interval", "val_check_interval=None"),
        ({"val_interval": "1"}, "interval", "val_check_interval='1' has no unit"),
        ({"val_interval": "2 epochs", "val_every_epochs": 3}, "val-interval", "check_val_every_n_epoch=3"),
        ({"val_every_epochs": 0}, "val-interval", "check_val_every_n_epoch=0"),
        ({"val_interval": 0.5, "val_every_epochs": None}, "val-interval", "check_val_every_n_epoch=None"),
    ],
)
def test_limits_that_mean_nothing_are_refused(options: dict[str, Any], code: str, text: str) -> None:
    """They would be found out after an epoch, or never."""
    with pytest.raises(ConfigError) as caught:
        Limits(**options)
    assert caught.value.code == code and text in str(caught.value)


def test_an_interval_that_no_epoch_reaches_is_refused() -> None:
    """A run of days would never be validated, and its best checkpoint never be kept."""
    limits = Limits(val_interval=11)
    limits.require_reachable(11)
    limits.require_reachable(math.inf)
    Limits(val_interval=11, val_every_epochs=None).require_reachable(10)
    with pytest.raises(ConfigError, match="val_check_interval=11, but an epoch has 10 micro-batches") as caught:
        limits.require_reachable(10)
    assert caught.value.code == "val-interval"
