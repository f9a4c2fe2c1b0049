"""Timing the parts of a window: some windows, or with a profiler all of them, run between marks.

The loop's own step knows nothing of it: in a window that is timed it is given a window, hooks and a call that say when
they begin and end.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from drivetrain.fabric.window import END, Window
from drivetrain.loggers.logger import Logger
from drivetrain.loop.hooks import CALLBACK_EVENTS, Hooks
from drivetrain.profilers.profiler import Profiler
from drivetrain.profilers.time_spent import TimeSpent

PERIOD = 61  # a prime: it falls into step with no interval of logs or checkpoints
_OF_EPOCHS = ("on_train_start", "on_train_end", "on_train_epoch_start", "on_train_epoch_end")


class StepTiming:
    """Tells the accounting of time, and a profiler, of the parts of windows.

    Args:
        spent: The accounting.
        profiler: The user's; with it every window is timed.
        period: Windows from one that is timed to the next.

    Attributes:
        next: The window, counted from 1 in this run, that is timed next.
    """

    def __init__(self, spent: TimeSpent, profiler: Profiler | None = None, *, period: int = PERIOD) -> None:
        self.spent = spent
        self.profiler = profiler
        self.period = 1 if profiler is not None else period
        self.next = self._next_sample = 0
        self._told: Sequence[Profiler] = [spent] if profiler is None else [spent, profiler]
        self._begins_epoch = self._is_in_window = False

    def start(self, name: str) -> None:
        """An action begins."""
        for one in self._told:
            one.start(name)

    def stop(self, name: str) -> None:
        """An action ends."""
        for one in self._told:
            one.stop(name)

    @contextmanager
    def during(self, name: str) -> Iterator[None]:
        """An action, as a block."""
        self.start(name)
        try:
            yield
        finally:
            self.stop(name)

    def around(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function that is an action whenever it is called."""

        @functools.wraps(function)
        def timed(*args: Any) -> Any:
            with self.during(name):
                return function(*args)

        return timed

    def in_window(self, name: str, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """A function that is an action in windows that are timed, and costs nothing in others."""
        timed = self.around(name, function)
        return lambda value: timed(value) if self._is_in_window else function(value)

    @contextmanager
    def of(self, loop: Any) -> Iterator[None]:
        """A block in which a loop runs: its windows are timed, and always what happens once an epoch."""
        self._begin(loop)
        try:
            yield
        finally:
            for one in self._told:
                one.end()

    def _begin(self, loop: Any) -> None:
        loop.timing, self._begins_epoch, self._next_sample = self, False, 0
        self.spent.run()
        self._hooks = loop.hooks = _timed_hooks(loop.hooks, _OF_EPOCHS, self)
        self._all_hooks = _timed_hooks(loop.hooks, [name for name in CALLBACK_EVENTS if name not in _OF_EPOCHS], self)
        loop.hooks.on_train_epoch_start = (*loop.hooks.on_train_epoch_start, self._begin_epoch)
        loop.loggers = [_TimedLogger(one, self) for one in loop.loggers]
        self._call = loop.call
        self._timed_call = self.around("forward", loop.call)

    def _begin_epoch(self) -> None:
        """From here to the first batch the loader starts: processes, and the first batches in them."""
        if self._begins_epoch:  # the last one had no window
            self.stop("loader start")
        self.next, self._begins_epoch = 0, True
        self.start("loader start")

    def step(self, loop: Any, window: Window, number: int) -> None:
        """Let the loop make a step that is timed.

        Ranks: all.
        """
        data, self._begins_epoch = "loader start" if self._begins_epoch else "data", False
        if data == "data":  # a window as most are
            self._next_sample = number + self.period
            self.spent.sample(True)
        else:
            self.stop(data)
        self.next = max(number + 1, self._next_sample)
        loop.hooks, loop.call = self._all_hooks, self._timed_call
        self._is_in_window = True
        self.start("loop")  # after an exception the run is over, and what is open is forgotten
        loop.step(_TimedWindow(window, self, data))
        self.stop("loop")
        loop.hooks, loop.call = self._hooks, self._call
        self.spent.sample(False)
        self._is_in_window = False
        if self.profiler is not None:
            self.profiler.step()


class _TimedWindow:
    """A window that says what it does."""

    def __init__(self, window: Window, timing: StepTiming, data: str) -> None:
        self._window, self._timing, self._data = window, timing, data
        self._has_begun_step = False

    def __iter__(self) -> Iterator[Any]:
        batches, name = iter(self._window), self._data
        while True:
            with self._timing.during(name):
                batch = next(batches, END)
            if batch is END:
                return
            name = "data"
            yield batch

    def backward(self, loss: Any, weight: Any = None) -> None:
        with self._timing.during("backward"):
            self._window.backward(loss, weight)

    def rescale(self) -> bool:
        with self._timing.during("sync"):
            can_step = self._window.rescale()
        self._timing.start("optimizer")
        self._has_begun_step = True
        return can_step

    def agree(self) -> Any:
        with self._timing.during("sync"):
            return self._window.agree()

    def close(self, **options: Any) -> None:
        if self._has_begun_step:
            self._timing.stop("optimizer")
        self._window.close(**options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._window, name)


class _TimedLogger:
    """A logger that says when it writes a row."""

    def __init__(self, logger: Logger, timing: StepTiming) -> None:
        self._logger, self._timing = logger, timing

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        with self._timing.during("loggers"):
            self._logger.log_metrics(metrics, step=step)


def _timed_hooks(hooks: Hooks, events: Sequence[str], timing: StepTiming) -> Hooks:
    """Hooks of which those of some events are actions; an event without hooks has none."""
    timed = Hooks.__new__(Hooks)
    timed.__dict__.update(hooks.__dict__)
    for event in events:
        bound = getattr(hooks, event)
        if bound:
            setattr(timed, event, tuple(timing.around(f"callbacks/{event}", one) for one in bound))
    return timed
