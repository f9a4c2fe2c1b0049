"""Cutting the epochs of a loader into windows."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

from drivetrain.base.errors import UnevenDataError, WindowError
from drivetrain.base.rng import capture_rng, restore_rng
from drivetrain.data.loader import Loader
from drivetrain.fabric.window import END, Window
from drivetrain.fabric.window_job import WindowJob


class Windows:
    """Cuts one epoch of a loader into windows.

    Args:
        job: What the windows have in common.
        loader: Its micro-batches.
        should_step: Each window makes its optimizer step by itself after its last micro-batch.
        limit: Use at most this many micro-batches of the epoch, on each rank.
        start: Micro-batches of this epoch that are done already.
    """

    def __init__(
        self, job: WindowJob, loader: Loader, *, should_step: bool = True, limit: int | None = None, start: int = 0
    ) -> None:
        self.job = job
        self.loader = loader
        self.should_step = should_step
        self.limit = limit
        self.start = start

    def __iter__(self) -> Iterator[Window]:
        """One window for each optimizer step of the epoch.

        Raises:
            WindowError: A window was left before its last micro-batch.
        """
        batches = self._begin()
        if self.start and not self.loader.can_position:
            _skip(batches, self.start)
        windows = self._sized(batches) if self.loader.num_rounds is not None else self._unsized(batches)
        for window in windows:
            if not self.should_step:
                yield window
                continue
            yield _SteppingWindow(window)  # type: ignore[misc]
            if not window.is_done:
                raise WindowError(
                    f"A window was left after {window.index + 1} of its micro-batches, without its optimizer step.",
                    code="window-left",
                    do="Iterate over each window to its end; leave the outer loop instead.",
                )

    def _begin(self) -> Iterator[Any]:
        if not self.start:
            return iter(self.loader)
        # A DataLoader draws a seed when it begins. In the middle of an epoch that was drawn before the random state
        # that is in force now.
        state = capture_rng()
        batches = iter(self.loader)
        restore_rng(state)
        return batches

    def _sized(self, batches: Iterator[Any]) -> Iterator[Window]:
        job, done, rounds, num_full = self.job, self.start, self.loader.num_rounds, self.loader.num_full_rounds
        assert rounds is not None
        rounds = rounds if self.limit is None else min(rounds, self.limit)
        while done < rounds:
            size = min(job.size(job.num_steps), rounds - done)
            yield Window(job, self.loader, batches, done, size, is_sized=True, is_full=done + size <= num_full)
            done += size

    def _unsized(self, batches: Iterator[Any]) -> Iterator[Window]:
        job, done = self.job, self.start
        while self.limit is None or done < self.limit:
            first = next(batches, END)
            if not _go_on(job, first is not END):
                return
            size = job.size(job.num_steps)
            size = size if self.limit is None else min(size, self.limit - done)
            yield Window(job, self.loader, batches if first is not END else iter(()), done, size, first=first)
            done += size


class _SteppingWindow:
    """A window that makes its optimizer step when its micro-batches are through."""

    def __init__(self, window: Window) -> None:
        self._window = window

    def __iter__(self) -> Iterator[Any]:
        yield from self._window
        self._window.step()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._window, name)


def _skip(batches: Iterator[Any], num_batches: int) -> None:
    """Read past what was trained on already, where a loader can only be read from its beginning."""
    warnings.warn(
        f"The loader cannot begin in the middle of an epoch: its first {num_batches} batches are read and dropped. "
        "A DataLoader over a map-style data set, not sharded by itself, begins at once.",
        stacklevel=3,
    )
    for _ in range(num_batches):
        next(batches, END)


def _go_on(job: WindowJob, has_batch: bool) -> bool:
    """Whether there is another window, decided by all ranks."""
    if job.num_ranks == 1:
        return has_batch
    num_with = int(job.collectives.agree([float(has_batch)])[0])
    if num_with in (0, job.num_ranks):
        return num_with > 0
    if job.uneven == "error":
        raise UnevenDataError(
            f"{job.num_ranks - num_with} of {job.num_ranks} ranks ran out of data; this one "
            f"{'has more' if has_batch else 'is one of them'}.",
            code="uneven",
            do="Give all ranks the same number of batches, or choose uneven='join' (every sample counts once) or "
            "'stop'.",
            rank=(job.collectives.rank, job.num_ranks),
        )
    return job.uneven == "join"
