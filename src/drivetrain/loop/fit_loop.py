"""The loop of training. One optimizer step is one call of `FitLoop.step`: read it from top to bottom.

on_train_start
for each epoch:
    on_train_epoch_start
    for each window:
        step: for each micro-batch: forward, backward; then clip, optimizer step, zero, schedulers, counters
        validation where it is due
    validation where it is due
    on_train_epoch_end, schedulers of epochs
on_train_end

A run that was told by a signal to end does so between two windows, or between two batches of validation: it saves, and
what would have followed is left to the run that goes on from there.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch.optim import Optimizer

from drivetrain.base.interval import Crossings, Interval
from drivetrain.base.progress import Progress
from drivetrain.base.rng import capture_rng
from drivetrain.data.loader import Loader
from drivetrain.fabric.auto_window import guarded_call
from drivetrain.fabric.window import Window
from drivetrain.fabric.window_job import WindowJob
from drivetrain.fabric.windows import Windows
from drivetrain.loggers.logger import Logger
from drivetrain.loop.hooks import Hooks
from drivetrain.loop.left_over import Boundary, LeftOver
from drivetrain.loop.limits import Limits, no_batches
from drivetrain.loop.metrics import MetricStore
from drivetrain.loop.optimizers import LRSchedulerConfig
from drivetrain.loop.rows import write
from drivetrain.loop.step_output import read_output
from drivetrain.loop.step_timing import StepTiming
from drivetrain.strategies.optimizer_calls import zero_gradients


@dataclass
class FitLoop:
    """Trains until the limits are reached or a stop is agreed.

    Attributes:
        job: Strategy, prepared module, optimizers, window sizes and clipping.
        loader: Micro-batches of this rank.
        hooks: Bound for this run.
        metrics: Where `self.log` goes.
        progress: The counters.
        limits: When it ends, validates and logs.
        schedulers: Learning-rate schedulers.
        loggers: Written to after reduction, on rank 0 only.
        validate: Runs validation; false if it was left because the run was told to end. `None` where there is none.
        save: Saves the state of a run that was told to end.
        limit_batches: Micro-batches of an epoch at most.
        takes_index: The training step takes `batch, batch_idx`, not the batch alone.
        clock: Seconds, for what is due by time.
        has_to_end: The run was told to end, as ranks have agreed, and there is more to do.
        resumed: What the run from which this one goes on has left over.
        restore_rng: Puts back the random state of a run that goes on; nothing before may have drawn from it.
        rng: The random state to save; `None` for that of the moment.
        timing: Which windows are timed, and how.
    """

    job: WindowJob
    loader: Loader
    hooks: Hooks
    metrics: MetricStore
    progress: Progress
    limits: Limits
    schedulers: Sequence[LRSchedulerConfig]
    loggers: Sequence[Logger]
    validate: Callable[[], bool] | None
    save: Callable[[], None]
    limit_batches: int | None = None
    takes_index: bool = True
    clock: Callable[[], float] = time.monotonic
    has_to_end: bool = False
    resumed: LeftOver | None = None
    restore_rng: Callable[[], None] = lambda: None
    rng: dict[str, Any] | None = None
    timing: StepTiming | None = None

    def __post_init__(self) -> None:
        self.optimizers: Sequence[Optimizer] = self.job.optimizers
        self.make_steps: Callable[[Sequence[Optimizer]], bool] = self.job.strategy.step
        self.zero: Callable[[Optimizer], None] = zero_gradients
        self.num_rounds: int | None = None
        self.at = Boundary()
        self._windows: Windows | None = None
        share = self.job.collectives.broadcast if self.job.num_ranks > 1 else None
        self.call: Callable[..., Any] = self.job.strategy.call
        if self.job.finder is not None:
            self.call = guarded_call(self.job)
            self.job.finder.on_begin, self.job.finder.on_retry = self.metrics.keep_totals, self.metrics.restart_window
        self.log_due = Crossings(self.limits.log_every, share)
        interval = self.limits.val_interval
        self.val_due = Crossings(interval, share) if isinstance(interval, Interval) else None
        self._validates_inside = not (isinstance(interval, float) and interval == 1.0)
        self.epoch_schedulers = [(one, every) for one in self.schedulers if (every := one.every.whole_epochs)]
        self.step_schedulers = [(one, Crossings(one.every)) for one in self.schedulers if not one.every.whole_epochs]

    def run(self) -> None:
        """Train.

        Ranks: all.
        """
        for hook in self.hooks.on_train_start:
            hook()
        for number, window in enumerate(self.windows(), 1):
            if self.timing is None or number < self.timing.next:
                self.step(window)
            else:
                self.timing.step(self, window, number)
        if self.has_to_end:
            self.save()
        for prepared in self.job.prepared:
            self.job.strategy.end_training(prepared)
        if self.job.carried is not None and not self.has_to_end:
            warnings.warn(
                f"Training ended with {self.job.carried.num} micro-batches that do not fill a window: no step was made "
                "on them (remainder='carry'). A checkpoint holds their gradients.",
                stacklevel=2,
            )
        for hook in self.hooks.on_train_end:
            hook()

    def windows(self) -> Iterator[Window]:
        """The windows of all epochs, with what happens between them.

        Ranks: all.
        """
        progress = self.progress
        self._last_s = self.clock()
        left, is_first, should_stop = self.resumed, True, False
        while left is not None or not (should_stop or self.limits.is_reached(progress)):
            if progress.epoch_micro_step == 0:
                self.restore_rng()
            self.metrics.begin_epoch("train")
            for hook in self.hooks.on_train_epoch_start if left is None or not left.is_heard else ():
                hook()
            self._position_loader()
            if is_first:
                self._begin_to_count()
            is_first = False
            self.restore_rng()
            start, has_windows = progress.epoch_micro_step, progress.epoch_micro_step > 0
            self._windows = Windows(self.job, self.loader, should_step=False, limit=self.limit_batches, start=start)
            if left is not None:
                left, should_stop = self._catch_up(left, self._windows)
            ends = self._windows.is_over or self.has_to_end or left is not None or should_stop
            for window in self._windows if not (ends or self.limits.steps_reached(progress)) else ():
                self.at.begin_window(progress, window, is_last=self._windows.is_over)
                has_windows = True
                yield window
                should_stop = self._end_window(window)
                if self.has_to_end or should_stop or self.limits.steps_reached(progress):
                    break
            if self.job.carried is not None:
                self.metrics.carry_window()
            if self.has_to_end:
                return
            if not has_windows:
                raise no_batches(self.job, self.limit_batches)
            should_stop = self._end_epoch(left) or should_stop
            left = None
            if self.has_to_end:
                return
        self.restore_rng()  # where nothing was left to do

    def _end_window(self, window: Window) -> bool:
        """Validate where it is due, or leave it to the run that goes on; whether to stop."""
        is_due = self._validates_inside and self._validates_now()
        is_wished = window.is_stop_agreed if self.job.num_ranks > 1 else self.job.wants_stop()
        should_stop = is_wished and not is_due and self.limits.may_stop(self.progress)
        if not should_stop and self.wants_end(window):
            self._leave("validation" if is_due else "step_end")
        elif is_due:
            should_stop = self._validates()
        if not self.has_to_end:
            self.at.stage = ""
        return should_stop

    def wants_end(self, window: Window) -> bool:
        """After a window, between two steps: a rank was told to end, as all know."""
        return window.is_end_agreed if self.job.num_ranks > 1 else self.job.wants_end()

    def _leave(self, stage: str) -> None:
        self.has_to_end, self.at.stage = True, stage

    # ---------------------------------------------------------------- what a checkpoint leaves to do

    def left_over(self) -> LeftOver:
        """What the run that goes on from a checkpoint that is written now has to do before its next window."""
        is_over, is_reported = self._windows is not None and self._windows.is_over, self.metrics.place == "none"
        due = {"log": self.log_due, "validation": self.val_due}
        return self.at.left_over(self.hooks, is_reported=is_reported, is_over=is_over, **due)

    def _catch_up(self, left: LeftOver, windows: Windows) -> tuple[LeftOver | None, bool]:
        """Do what the run from which this one goes on has left over of its last step.

        Returns:
            What it has left over of the end of its epoch, and whether to stop.
        """
        windows.is_over, self.at.before, should_stop = left.is_over, left.before, False
        left.go_on(log=self.log_due, validation=self.val_due)
        if left.stage == "batch_end":
            self._report_step()
        elif left.stage == "step_end":
            self.at.stage = "step_end"
            self.hooks.run("on_step_end", left=left.owners)
        if left.stage in ("batch_end", "step_end"):
            should_stop = self._validates() if self._validates_now() else self._agree_to_stop()
        elif left.stage == "validation":
            should_stop = self._validates(left)
        elif left.ends_epoch and not left.is_over:
            # A limit or a wish has broken the epoch off; without it there is more of it to do.
            should_stop = self.limits.steps_reached(self.progress) or self._agree_to_stop()
        if not self.has_to_end:
            self.at.stage = ""
        is_end = left.ends_epoch and (left.is_over or should_stop)
        return (left if is_end else None), should_stop

    def _position_loader(self) -> None:
        """Let the loader begin where the run stands, also where another number of ranks has brought it there."""
        loader, progress = self.loader, self.progress
        loader.set_epoch(progress.epoch)
        loader.set_position(progress.epoch_samples)
        done = loader.rounds_before(progress.epoch_samples)
        if done is not None:
            progress.epoch_micro_step = done
        rounds = loader.num_rounds
        self.num_rounds = rounds if rounds is None or self.limit_batches is None else min(rounds, self.limit_batches)

    def _begin_to_count(self) -> None:
        """What was due up to here is over, also after a resume."""
        self._micro_step = self.progress.micro_step
        for due in (self.log_due, self.val_due, *(due for _, due in self.step_schedulers)):
            if due is not None:
                due.begin(self.progress, self.num_rounds)

    def _validates_now(self) -> bool:
        if self.val_due is None:
            before = int(self.at.before[3])
            return self._validates_inside and self.limits.validates_within(self.progress, self.num_rounds, before)
        return self.val_due.take(self.progress, self.num_rounds) > 0

    def step(self, window: Window) -> None:
        """Make one optimizer step: forward and backward for each micro-batch, then clip, step, zero.

        Ranks: all.
        """
        job, hooks, metrics, progress = self.job, self.hooks, self.metrics, self.progress
        output: Any = None
        metrics.begin_window()
        for batch in window:
            index = window.start + window.index
            for hook in hooks.on_train_batch_start:
                hook(batch, index)
            metrics.samples = window.samples
            output = self.call(job.prepared[0], "training_step", *((batch, index) if self.takes_index else (batch,)))
            loss, weight = read_output(output)
            for hook in hooks.on_before_backward:
                hook(loss)
            window.backward(loss, weight)
            for hook in hooks.on_after_backward:
                hook()
            progress.micro_step += 1
            metrics.samples = window.samples if weight is None else weight
            if not window.is_last:
                for hook in hooks.on_train_batch_end:
                    hook(output, batch, index)
            metrics.end_micro_batch(metrics.samples)
        has_stepped = False
        if window.rescale():
            for hook in hooks.on_before_optimizer_step:
                for optimizer in self.optimizers:
                    hook(optimizer)
            if job.clips:
                job.clip_gradients()
            has_stepped = self.make_steps(self.optimizers)
        for optimizer in self.optimizers if window.skipped != "carry" else ():
            for hook in hooks.on_before_zero_grad:
                hook(optimizer)
            self.zero(optimizer)
        window.close()
        # Where ranks step apart, schedules are those of the windows: alike on all of them.
        self._count_step(window, has_stepped or (job.steps_apart and window.skipped in (None, "apart")))
        if window.index >= 0:
            for hook in hooks.on_train_batch_end:
                hook(output, batch, window.start + window.index)
        if window.is_step:
            self._report_step()

    def _report_step(self) -> None:
        """The loggers' row, then the hooks that see all of the step."""
        self.metrics.is_log_step = self.log_due.take(self.progress, self.num_rounds) > 0
        if self.metrics.is_log_step:
            write(self.loggers, self.metrics, self.metrics.report_step(), self.progress)
        self.metrics.carried = {}
        self.at.stage = "step_end"
        if self.hooks.on_step_end:
            self.hooks.run("on_step_end")

    def _count_step(self, window: Window, has_stepped: bool) -> None:
        """Counters, then schedulers: hooks that follow see, and save, both."""
        self.at.stage = "batch_end" if window.is_step else "step_end"
        self.progress.step += window.is_step
        self.job.has_stepped = has_stepped
        self._count(window)
        for config, due in self.step_schedulers:
            number = due.take(self.progress, self.num_rounds)
            if number and (has_stepped or due.interval.unit != "step"):
                config.advance(self.metrics.callback_metrics, number)

    def _count(self, window: Window) -> None:
        progress = self.progress
        rounds, samples = window.global_counts()
        progress.micro_step = self._micro_step = self._micro_step + rounds  # until here, this rank's own were counted
        progress.epoch_micro_step = window.start + rounds
        progress.samples += samples
        progress.epoch_samples += samples
        self._read_clock()

    def _validates(self, left: LeftOver | None = None) -> bool:
        """Validate within an epoch; whether to stop then."""
        self.at.stage = "validation"
        if not self._validate(left):
            self._leave("validation")
            return True
        self.at.is_validated = True
        should_stop = self._agree_to_stop()
        if self.has_to_end:
            self._leave("validation")
        return should_stop

    def _validate(self, left: LeftOver | None = None) -> bool:
        """False if it was left, and has to be done again. What is `left` of it may have been reported already."""
        if left is not None and left.is_validated:
            self.hooks.run("on_validation_end", left=left.owners)
        if self.validate is None or (left is not None and left.is_validated):
            return True
        self.rng = capture_rng()
        with self.metrics.set_aside():
            is_whole = self.validate()
        self._read_clock()
        if self.val_due is not None:  # what came due while it ran is over
            self.val_due.begin(self.progress, self.num_rounds)
        self.rng = None if is_whole else self.rng
        return is_whole

    def _read_clock(self) -> None:
        before, self._last_s = self._last_s, self.clock()
        self.progress.seconds += self._last_s - before

    def _end_epoch(self, left: LeftOver | None = None) -> bool:
        """Validation, hooks, reduced metrics and schedulers at the end of an epoch; whether to stop."""
        progress, at = self.progress, self.at
        assert self._windows is not None
        is_whole = self._windows.is_over  # as far as is known: a stream that was broken off may hold more
        if left is None or left.stage == "epoch_validation":
            is_due = self.limits.validates_at_epoch_end(progress) and (is_whole or self.limits.steps_reached(progress))
            at.stage, at.is_validated = "epoch_validation", False
            if is_due and not self._validate(left):
                self._leave("epoch_validation")
                return True
            self.metrics.place, left = "epoch_end", None
            at.values = self.metrics.report_epoch(is_last=False)
        else:
            self.metrics.place, at.values = "epoch_end", left.values
        at.stage = "epoch_end"
        self.hooks.run("on_train_epoch_end", left=None if left is None else left.owners)
        at.values.update(self.metrics.report_epoch())
        self.metrics.place = "none"
        write(self.loggers, self.metrics, at.values, progress)
        at.stage, at.values = "", {}
        if is_whole:
            progress.epoch += 1
            progress.epoch_micro_step = progress.epoch_samples = 0
            for config, every in self.epoch_schedulers:
                if progress.epoch % every == 0:
                    config.advance(self.metrics.callback_metrics)
        return self._agree_to_stop()

    def _agree_to_stop(self) -> bool:
        """Also hears whether the run was told to end."""
        collectives = self.job.collectives
        wants, ends = self.job.wants_stop(), self.job.wants_end()
        if collectives.world_size > 1:
            wants, ends = (number > 0 for number in collectives.agree([float(wants), float(ends)], "max"))
        should_stop = wants and self.limits.may_stop(self.progress)
        self.has_to_end = ends and not (should_stop or self.limits.is_reached(self.progress))
        return should_stop
