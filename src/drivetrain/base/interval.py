"""How often something happens, with its unit: "500 steps", "1e6 samples", "0.25 epochs", "15 min"."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from fractions import Fraction
from typing import Any

from drivetrain.base.errors import ConfigError
from drivetrain.base.progress import Progress

_SPELLINGS = {
    "step": ("step", "steps"),
    "micro-batch": ("micro-batch", "micro-batches", "micro_batch", "micro_batches", "microbatch", "microbatches"),
    "sample": ("sample", "samples"),
    "epoch": ("epoch", "epochs"),
    "second": ("second", "seconds", "s", "sec", "secs"),
    "minute": ("minute", "minutes", "min", "mins"),
    "hour": ("hour", "hours", "h"),
    "day": ("day", "days", "d"),
}
_UNITS = {spelling: unit for unit, spellings in _SPELLINGS.items() for spelling in spellings}
_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400}
_COUNTERS = {"step": "step", "micro-batch": "micro_step", "sample": "samples"}
_TEXT = re.compile(r"\s*(?P<length>[+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*(?P<unit>.*?)\s*", re.IGNORECASE)
_EXAMPLES = '"500 steps", "64 micro-batches", "1e6 samples", "0.25 epochs", "15 min"'


@dataclass(frozen=True, init=False, repr=False)
class Interval:
    """A length and its unit, such as `Interval(500, "steps")`.

    Attributes:
        length: Above 0, exact; whole in all units but epochs and seconds.
        unit: `"step"`, `"micro-batch"`, `"sample"`, `"epoch"` or `"second"`. The plural, minutes, hours and days are
            read too.

    Raises:
        ConfigError: It is no such length or unit.
    """

    length: Fraction
    unit: str

    def __init__(self, length: int | float | Fraction, unit: str) -> None:
        shown = f"Interval({length!r}, {unit!r})"
        self._set(_exact(length, shown), unit, shown)

    def _set(self, length: Fraction, unit: str, shown: str) -> None:
        known = _UNITS.get(unit.lower())
        if known is None:
            near = difflib.get_close_matches(unit.lower(), [plural for _, plural, *_ in _SPELLINGS.values()], n=1)
            hint = f"Did you mean {near[0]!r}? " if near else ""
            raise _wrong(f"{shown}: {unit!r} is not a unit." if unit else f"{shown} has no unit.", hint)
        if known in _SECONDS:
            known, length = "second", length * _SECONDS[known]
        if length <= 0:
            raise _wrong(f"{shown} is not above 0.")
        if length.denominator != 1 and known in _COUNTERS:
            raise _wrong(
                f"{shown}: there is no part of a {known}.", f"Use {-(-length.numerator // length.denominator)}."
            )
        object.__setattr__(self, "length", length)
        object.__setattr__(self, "unit", known)

    @staticmethod
    def parse(value: str | timedelta | Interval, *, name: str = "interval") -> Interval:
        """The interval that a user wrote.

        Args:
            value: Text such as `"500 steps"`, a `timedelta`, or an interval.
            name: Of the argument, for the error.

        Raises:
            ConfigError: It is no interval; the nearest unit is named.
        """
        if isinstance(value, Interval):
            return value
        shown = f"{name}={value!r}"
        made = Interval.__new__(Interval)
        if isinstance(value, timedelta):
            made._set(Fraction(value // timedelta(microseconds=1), 10**6), "second", shown)
            return made
        match = _TEXT.fullmatch(value) if isinstance(value, str) else None
        if match is None:
            raise _wrong(f"{shown} is not a number and a unit.")
        made._set(Fraction(match["length"].replace("_", "")), match["unit"], shown)
        return made

    def __str__(self) -> str:
        number = str(self.length) if self.length.denominator == 1 else f"{float(self.length):g}"
        if self.unit == "second":
            return f"{number} s"
        plural = "es" if self.unit.endswith("ch") and self.unit != "epoch" else "s"
        return f"{number} {self.unit}" + (plural if self.length != 1 else "")

    __repr__ = __str__

    def __mul__(self, number: int) -> Interval:
        return Interval(self.length * number, self.unit)

    @property
    def whole_epochs(self) -> int | None:
        """Its epochs, if it is a whole number of them."""
        return int(self.length) if self.unit == "epoch" and self.length.denominator == 1 else None

    def multiples(self, progress: Progress, num_rounds: int | None = None) -> int:
        """How often the interval fits between the start of the run and here.

        Args:
            progress: Where the run stands.
            num_rounds: Micro-batches of an epoch, for parts of one.
        """
        top, below = self.length.numerator, self.length.denominator
        if self.unit == "second":
            return int(progress.seconds * below // top)
        if self.unit == "epoch":
            rounds = num_rounds or 1
            done = progress.epoch * rounds + (progress.epoch_micro_step if num_rounds else 0)
            return done * below // (top * rounds)
        return int(getattr(progress, _COUNTERS[self.unit]) // top)


class Crossings:
    """The multiples of an interval that a run crosses, asked for after each window.

    Multiples are counted from the start of the run: nothing drifts with the size of windows, and a resumed run goes on
    in phase. A window that crosses several gets their number, once.

    Seconds are those of rank 0. On several ranks it says after how many steps to ask again, about halfway to the next
    multiple and no more than have passed already, so that the ranks do not talk after each step.

    Args:
        interval: Whose multiples.
        share: Gives the value of rank 0 to all ranks; `None` on one rank.
    """

    def __init__(self, interval: Interval, share: Callable[[Any], Any] | None = None) -> None:
        self.interval = interval
        self._share = share if interval.unit == "second" else None
        self._num = 0
        self._since = (0.0, 0)
        self._next_look = 0
        self._counter = _COUNTERS.get(interval.unit)  # whole multiples of it
        self._next = 0

    def begin(self, progress: Progress, num_rounds: int | None = None) -> None:
        """What was crossed up to here is over.

        Raises:
            ConfigError: Epochs have no length that is known, so that parts of them cannot be counted.
        """
        if self.interval.unit == "epoch" and not num_rounds:
            raise ConfigError(
                f"{self.interval} are a part of the training loader, which has no length.",
                code="interval",
                do="Count steps, micro-batches or samples instead.",
            )
        self._num = self.interval.multiples(progress, num_rounds)
        self._next = (self._num + 1) * int(self.interval.length)
        self._since = (progress.seconds, progress.step)
        self._next_look = progress.step + 1

    @property
    def num(self) -> int:
        """Multiples up to where it was asked last."""
        return self._num

    def go_on(self, num: int) -> None:
        """Multiples up to `num` are over; those that follow it, up to where the run goes on, are not."""
        self._num, self._next, self._next_look = num, (num + 1) * int(self.interval.length), 0

    def take(self, progress: Progress, num_rounds: int | None = None) -> int:
        """How many multiples were crossed since the last call.

        Ranks: all, after each optimizer step.
        """
        if self._counter is not None:
            if getattr(progress, self._counter) < self._next:
                return 0
        elif self._share is not None and progress.step < self._next_look:
            return 0
        num = self.interval.multiples(progress, num_rounds)
        crossed, self._num = max(0, num - self._num), num
        self._next = (num + 1) * int(self.interval.length)
        if self._share is not None:
            crossed, wait = self._share((crossed, self._wait(progress)))
            self._next_look = progress.step + wait
        if crossed:
            self._since = (progress.seconds, progress.step)
        return crossed

    def _wait(self, progress: Progress) -> int:
        """Steps until about halfway to the next multiple."""
        seconds, steps = progress.seconds - self._since[0], max(1, progress.step - self._since[1])
        left = float((self._num + 1) * self.interval.length) - progress.seconds
        return max(1, min(int(left / max(seconds / steps, 1e-9) / 2), steps))


def _exact(length: Any, shown: str) -> Fraction:
    if isinstance(length, (int, Fraction)) and not isinstance(length, bool):
        return Fraction(length)
    if isinstance(length, float) and length - length == 0:
        return Fraction(repr(length))  # 0.1 is a tenth
    raise _wrong(f"{shown} has no length.")


def _wrong(what: str, hint: str = "") -> ConfigError:
    return ConfigError(
        what, code="interval", do=f"{hint + ' ' if hint and hint[-1] != ' ' else hint}Write {_EXAMPLES}."
    )
