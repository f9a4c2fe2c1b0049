"""Cutting the epochs of a loader into windows."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from drivetrain.base.errors import ConfigError, WindowError
from drivetrain.data.loader import Loader
from drivetrain.fabric.agreement import usual_agreement
from drivetrain.fabric.auto_window import AutoWindow
from drivetrain.fabric.joint_window import JointWindow
from drivetrain.fabric.single_window import SingleWindow
from drivetrain.fabric.synced_window import SyncedWindow
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

    Attributes:
        is_over: No window follows the one that was handed out last, as far as that is known.
    """

    def __init__(
        self, job: WindowJob, loader: Loader, *, should_step: bool = True, limit: int | None = None, start: int = 0
    ) -> None:
        self.job = job
        self.loader = loader
        self.should_step = should_step
        self.limit = limit
        self.start = start
        self.is_over = False
        self._kind: type[Window] = Window
        if job.finder is not None:
            self._kind = AutoWindow
        elif job.runs_in_step:
            self._kind = JointWindow
        if loader.global_batch is not None and job.remainder == "carry":
            raise ConfigError(
                "remainder='carry' needs windows of whole micro-batches, but micro_batch_size cuts them from global "
                "batches.",
                code="remainder-policy",
                do="Use 'step' or 'drop', or leave out micro_batch_size and let the loader's batch_size divide.",
            )

    def __iter__(self) -> Iterator[Window]:
        """One window for each optimizer step of the epoch.

        Raises:
            WindowError: A window was left before its last micro-batch.
        """
        batches = self.loader.iterate_from(self.start)
        windows = self._sized(batches) if self.loader.num_rounds is not None else self._unsized(batches)
        return self._stepping(windows) if self.should_step else windows

    def _stepping(self, windows: Iterator[Window]) -> Iterator[Window]:
        for window in windows:
            yield _SteppingWindow(window)  # type: ignore[misc]
            if not window.is_done:
                raise WindowError(
                    f"A window was left after {window.index + 1} of its micro-batches, without its optimizer step.",
                    code="window-left",
                    do="Iterate over each window to its end; leave the outer loop instead.",
                )

    def _sized(self, batches: Iterator[Any]) -> Iterator[Window]:
        job, done, rounds, num_full = self.job, self.start, self.loader.num_rounds, self.loader.num_full_rounds
        assert rounds is not None
        rounds = rounds if self.limit is None else min(rounds, self.limit)
        has_plan, samples = self.loader.global_batch is not None, self.loader.batch_size or 1
        make_one = self._one_batch_windows(batches, samples)
        num_single = num_full if make_one is not None else 0
        while done < rounds:
            size = (self.loader.window_rounds(done) if has_plan else None) or self._next_size()
            if size == 1 and done < num_single and job.carried is None:
                self.is_over = done + 1 == rounds
                assert make_one is not None
                yield make_one(done)
                done += 1
                continue
            count = min(size, rounds - done)
            if count < size and job.remainder == "drop":
                job.note_skipped("drop")
                break
            rest = rounds - done - count
            self.is_over = rest == 0 or (job.remainder == "drop" and rest < max(1, job.size(job.num_steps + 1)))
            yield self._kind(
                job, self.loader, batches, done, count, size=size, is_sized=True, is_full=done + count <= num_full,
                is_open=count < size and job.remainder == "carry",
            )  # fmt: skip
            done += count
        self.is_over = True

    def _one_batch_windows(self, batches: Iterator[Any], samples: int) -> Callable[[int], Window] | None:
        """Makes windows of one full micro-batch on each rank, if the job's can be of that kind."""
        job, loader = self.job, self.loader
        if SingleWindow.fits(job):
            return functools.partial(SingleWindow, job, loader, batches, samples=samples)
        if SyncedWindow.fits(job):
            usual = usual_agreement(float(samples), job.num_ranks)
            return functools.partial(SyncedWindow, job, loader, batches, samples=samples, usual=usual)
        return None

    def _unsized(self, batches: Iterator[Any]) -> Iterator[Window]:
        """Windows of an epoch whose end shows itself: ranks tell each other at its beginning who has data for one.

        Only those that have none wait for the answer; the others ask for it after their last backward.
        """
        job, done = self.job, self.start
        while self.limit is None or done < self.limit:
            first = next(batches, END)
            has_data = first is not END
            if job.num_ranks == 1 and not has_data:
                break
            count_ranks = _begin_count(job, has_data) if job.num_ranks > 1 else None
            if count_ranks is not None and (not has_data or job.uneven == "stop"):
                num_with_data = count_ranks()
                if num_with_data == 0 or (num_with_data < job.num_ranks and job.uneven == "stop"):
                    break
            size = self._next_size()
            count = size if self.limit is None else min(size, self.limit - done)
            window = self._kind(
                job, self.loader, batches if has_data else iter(()), done, count, size=size, first=first
            )
            window.count_ranks = count_ranks
            yield window
            done += count
        self.is_over = True

    def _next_size(self) -> int:
        """Micro-batches that the next window still needs, on each rank."""
        size, carried = self.job.size(self.job.num_steps), self.job.carried
        return size if carried is None else max(1, size - carried.num)


class _SteppingWindow:
    """A window that makes its optimizer step when its micro-batches are through."""

    def __init__(self, window: Window) -> None:
        self._window = window

    def __iter__(self) -> Iterator[Any]:
        yield from self._window
        self._window.step()

    def run(self, step: Callable[[Any], Any]) -> None:
        """Run the window's micro-batches and its optimizer step.

        With `micro_batch_size="auto"` this is what finds out, in forward and backward, what does not fit into memory.

        Ranks: all.

        Args:
            step: Gives the mean loss of a micro-batch, or a tuple of it and its weight.
        """
        finder = self._window.job.finder
        for batch in self:
            result = step(batch) if finder is None else finder.guarded(step, batch)
            loss, weight = result if isinstance(result, tuple) else (result, None)
            self._window.backward(loss, weight)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._window, name)


def _begin_count(job: WindowJob, has_data: bool) -> Callable[[], float]:
    """Begin to count the ranks that have data; the answer may be asked for several times."""
    finish = job.collectives.start_agreement([float(has_data)])
    return functools.cache(lambda: finish()[0])
