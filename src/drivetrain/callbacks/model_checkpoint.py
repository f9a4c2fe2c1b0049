"""Keeps checkpoints of a run: the best, the newest, and always the last state of a run that ended by itself."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

from drivetrain.base.errors import CheckpointError
from drivetrain.base.interval import Interval
from drivetrain.base.locations import is_url, join, locate
from drivetrain.callbacks.after_save import AfterSave, PendingSave, require_save_error_policy
from drivetrain.callbacks.checkpoint_interval import read_checkpoint_interval
from drivetrain.callbacks.checkpoint_name import DEFAULT_TEMPLATE, checkpoint_name
from drivetrain.callbacks.checkpoint_place import default_dirpath, free_path
from drivetrain.callbacks.checkpoint_ranking import check_top_k, score_of
from drivetrain.callbacks.checkpoint_record import CheckpointRecord
from drivetrain.callbacks.kept_checkpoints import SavePlan
from drivetrain.callbacks.monitor import MonitorPlace, has_validation, monitor_missing, require_mode
from drivetrain.callbacks.shared_interval import SharedInterval
from drivetrain.checkpoint.remote import remove
from drivetrain.checkpoint.stale import remove_stale_temporaries
from drivetrain.fabric.together import together

_log = logging.getLogger("drivetrain.callbacks")


class ModelCheckpoint(CheckpointRecord):
    """Saves a checkpoint directory whenever one is due; once it is complete, deletes what is no longer kept.

    Rank 0 decides what is saved under which name, and deletes; all ranks save together. The state at the end of a run
    is saved if no checkpoint holds it yet, also if it is not among the best (unless nothing is to be kept at all).

    Args:
        dirpath: Where, also a URL such as `s3://bucket/runs`; by default `checkpoints` in the logger's directory, else
            in the trainer's `default_root_dir`.
        filename: A template such as `"{epoch:02d}-{val_loss:.2f}"` of metrics, `epoch` and `step`.
        monitor: The metric that ranks checkpoints; by default the newest ones are kept.
        verbose: Print what is saved, on rank 0.
        save_last: Keep the newest state at every due moment, also if it is not among the best, and let `last.ckpt` lead
            to it. (`"link"` means the same.)
        save_top_k: How many to keep: -1 for all, 0 for none.
        save_weights_only: Leave out the optimizers.
        mode: Whether a small (`"min"`) or a great (`"max"`) value is good.
        auto_insert_metric_name: Put `name=` before each value in the file name.
        every_n_train_steps: Save after each so many optimizer steps. One interval may be given.
        train_time_interval: Save after the step at which so much time has passed; rank 0's clock counts.
        every_n_epochs: Save in each n-th epoch; 1 if no interval is given, 0 for never.
        save_on_train_epoch_end: With `every_n_epochs`, whether to save at the end of the epoch or after validation. By
            default after the validation if `monitor` comes from there, else at the end of the epoch.
        enable_version_counter: A name that something else has already gets `-v1`, `-v2`; otherwise it is replaced.
        save_on_exception: Save when an exception ends a run of one rank. Batch statistics and random state then include
            the broken window.
        save_async: Training stops for a copy of the state alone; it is written while training goes on. The next save
            waits for it, and so does the end. A save that fails is an error on all ranks at the end of a later step.
        on_save_error: `"raise"`, or `"warn"`: training goes on without that checkpoint; the ones before stay.
        every: An interval with its unit instead: `"500 steps"`, `"1e6 samples"`, `"0.25 epochs"`, `"30 min"`.

    Attributes:
        best_model_path: The best one; without `monitor` the newest one. Empty if none is kept.
        best_model_score: Its score.
        last_model_path: The newest one of all.
        best_k_models: Path to score of those kept by score.
        kth_best_model_path: Of these the worst.
        current_score: The score of the newest one.

    Raises:
        ConfigError: Arguments that do not fit; and, when one is due, a `monitor` that was not logged.
    """

    CHECKPOINT_NAME_LAST = "last"
    FILE_EXTENSION = ".ckpt"
    runs_last = True

    def __init__(
        self,
        dirpath: str | Path | None = None,
        filename: str | None = None,
        monitor: str | None = None,
        verbose: bool = False,
        save_last: bool | Literal["link"] | None = None,
        save_top_k: int = 1,
        save_weights_only: bool = False,
        mode: str = "min",
        auto_insert_metric_name: bool = True,
        every_n_train_steps: int | None = None,
        train_time_interval: timedelta | None = None,
        every_n_epochs: int | None = None,
        save_on_train_epoch_end: bool | None = None,
        enable_version_counter: bool = True,
        save_on_exception: bool = False,
        *,
        save_async: bool = False,
        on_save_error: Literal["raise", "warn"] = "raise",
        every: str | timedelta | Interval | None = None,
    ) -> None:
        require_mode("ModelCheckpoint", mode)
        check_top_k(save_top_k)
        place = MonitorPlace(monitor, save_on_train_epoch_end)
        located = None if dirpath is None else locate(dirpath)
        super().__init__(located, monitor, "max" if mode == "max" else "min", save_top_k, place)
        self.filename = filename
        self.verbose = verbose
        self.save_last = bool(save_last)
        self.save_weights_only = save_weights_only
        self.auto_insert_metric_name = auto_insert_metric_name
        self._interval = read_checkpoint_interval(every, every_n_train_steps, train_time_interval, every_n_epochs)
        self.every_n_train_steps = self._interval.every_n_train_steps
        self.train_time_interval = self._interval.train_time_interval
        self.every_n_epochs = self._interval.every_n_epochs
        self.save_on_train_epoch_end = save_on_train_epoch_end
        self.enable_version_counter = enable_version_counter
        self.save_on_exception = save_on_exception
        self.save_async = save_async
        self.on_save_error = require_save_error_policy(on_save_error)

        self._pending: PendingSave | None = None
        self._is_training = False
        self._has_ended_epoch = False
        self._has_said_missing = False
        self._between_steps = None if self._interval.every is None else SharedInterval(self._interval.every)

    @property
    def state_key(self) -> str:
        """Tells callbacks apart by what they monitor and when they save."""
        return f"{type(self).__qualname__}(monitor={self.monitor!r}, mode={self.mode!r}, {self._interval.key})"

    # ---------------------------------------------------------------- when

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Say where checkpoints will be."""
        self.dirpath = self._given_dirpath or default_dirpath(trainer)

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Agree on the directory, and clear away what killed runs left half done, or had still to delete, in it.

        Ranks: all.
        """
        dirpath = self._given_dirpath or default_dirpath(trainer)
        self.dirpath = trainer.collectives.broadcast(dirpath) if trainer.world_size > 1 else dirpath
        self._kept.keep_below(self.dirpath)
        if trainer.is_global_zero and not trainer.fast_dev_run and not is_url(self.dirpath or ""):
            for line in remove_stale_temporaries(Path(self.dirpath)):
                _log.warning("%s: %s", self.dirpath, line)
        if trainer.is_global_zero and not trainer.fast_dev_run:
            self._kept.doomed = [path for path in self._kept.doomed if not remove(path)]

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to count."""
        if self._kept.saved_step != trainer.global_step:
            self._kept.saved_step = -1  # of another run of this callback
        self._is_training = True
        self._has_ended_epoch = False
        self._place.start(trainer.callback_metrics)
        if self._between_steps is not None:
            self._between_steps.start(trainer, self)

    def on_step_end(self, trainer: Any, pl_module: Any) -> None:
        """Save, if an interval is over that may end between two steps.

        Ranks: all.

        Raises:
            CheckpointError: A save beside training has failed.
        """
        if self._pending is not None:
            self._look_at_pending(trainer)
        if self._between_steps is not None and self._between_steps.is_over(trainer):
            self._save(trainer)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Save, if `monitor` comes from validation.

        Ranks: all.
        """
        if self._is_training and self._place.is_validation(trainer.callback_metrics) and self._is_epoch_due(trainer):
            self._save(trainer)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Save, if `monitor` does not come from validation.

        Ranks: all.
        """
        self._has_ended_epoch = True
        if self._place.is_epoch_end(trainer) and self._is_epoch_due(trainer):
            self._save(trainer)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Save the last state, if no checkpoint holds it.

        Ranks: all.
        """
        if trainer.was_preempted:
            self._end_quietly(trainer)
        elif (self.save_top_k != 0 or self.save_last) and trainer.global_step > 0:
            self._save(trainer, is_final=True)
        self._end_pending(trainer)
        self._is_training = False

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Save the last state with `save_on_exception`, where no other rank has to take part."""
        self._end_quietly(trainer)
        is_wanted = self.save_on_exception and self._may_save(trainer) and trainer.global_step != self._kept.saved_step
        self._is_training = False
        if not is_wanted:
            return
        kind = type(exception).__name__
        if trainer.world_size > 1:
            _log.warning("Not saved on %s: the other ranks may not be there.", kind)
            return
        try:
            path = self._path_of(f"exception-{self._name(trainer)}", set())
            self._carry_out(trainer, SavePlan(path, None, is_ranked=False), waits=True)
        except Exception as error:  # the exception that ends the run is what the user has to see
            _log.warning("Not saved on %s: %s", kind, error)

    def save_whole(self, trainer: Any, name: str) -> str:
        """Save all that a run needs to go on, whatever is kept otherwise. It is deleted when the next one is saved.

        Ranks: all.

        Args:
            trainer: Between two optimizer steps.
            name: Of the checkpoint, without a suffix.

        Returns:
            Its path; of one that is there already, if it holds this step.
        """
        self._end_quietly(trainer)
        if trainer.global_step != self._kept.saved_step or self.save_weights_only:
            collectives = trainer.collectives
            path = together(collectives, lambda: self._path_of(name, {self._kept.unranked}), only_zero=True)
            plan = SavePlan(collectives.broadcast(path), None, is_ranked=False)
            self._carry_out(trainer, plan, waits=True, weights_only=False)
        return self.last_model_path

    def _may_save(self, trainer: Any) -> bool:
        return self._is_training and not trainer.fast_dev_run

    def _is_epoch_due(self, trainer: Any) -> bool:
        return self.every_n_epochs > 0 and (trainer.current_epoch + 1) % self.every_n_epochs == 0

    # ---------------------------------------------------------------- what

    def _save(self, trainer: Any, *, is_final: bool = False) -> None:
        """Let rank 0 decide, then save together.

        Ranks: all.
        """
        if not self._may_save(trainer) or trainer.global_step == self._kept.saved_step:
            return
        self._end_pending(trainer, is_next_due=not is_final)
        plan: SavePlan | Exception | None = None
        if trainer.is_global_zero:
            try:
                plan = self._plan(trainer, is_final)
            except Exception as error:  # the other ranks wait for an answer
                plan = error
        if trainer.world_size > 1:
            plan = trainer.collectives.broadcast(plan)
        if isinstance(plan, Exception):
            raise plan
        if plan is not None:
            self._carry_out(trainer, plan, waits=is_final or not self.save_async)

    def _plan(self, trainer: Any, is_final: bool) -> SavePlan | None:
        if self.save_top_k == 0 and not self.save_last:
            return None
        score = None
        if self.monitor is None:
            score = self._kept.ranking.next_number
        elif not is_final and self.monitor in trainer.callback_metrics:
            score = score_of(trainer.callback_metrics[self.monitor], self.mode)
        elif not is_final:
            self._say_missing(trainer, self.monitor)
        leaves = None if score is None else self._kept.ranking.leaves(score)
        if leaves is None and score is not None and not (self.save_last or is_final):
            return None
        return SavePlan(self._path_of(self._name(trainer), {leaves, self._kept.unranked}), score, leaves is not None)

    def _say_missing(self, trainer: Any, monitor: str) -> None:
        """An interval of steps or time may be over before anything could be reported; else it is an error."""
        has_reported = self._has_ended_epoch and (self._place.has_validated or not has_validation(trainer))
        if self.every_n_epochs or has_reported:
            raise monitor_missing(type(self).__name__, monitor, trainer.callback_metrics)
        if not self._has_said_missing:
            self._has_said_missing = True
            warnings.warn(
                f"Step {trainer.global_step}: {monitor!r} was not reported yet; until it is, checkpoints are not "
                "ranked and only the newest is kept.",
                stacklevel=2,
            )

    def _name(self, trainer: Any) -> str:
        values = {**trainer.callback_metrics, "epoch": trainer.current_epoch, "step": trainer.global_step}
        return checkpoint_name(
            self.filename or DEFAULT_TEMPLATE, values, insert_names=self.auto_insert_metric_name or not self.filename
        )

    def _path_of(self, name: str, replaceable: set[str | None]) -> str:
        assert self.dirpath is not None
        if not self.enable_version_counter:
            return join(self.dirpath, f"{name}{self.FILE_EXTENSION}")
        return free_path(self.dirpath, name, self.FILE_EXTENSION, replaceable=replaceable)

    def _carry_out(self, trainer: Any, plan: SavePlan, *, waits: bool, weights_only: bool | None = None) -> None:
        before = self.state_dict()
        self._note(plan, trainer.global_step)  # first, so that the checkpoint knows itself
        try:
            for logger in trainer.loggers:
                logger.save()  # a run that goes on from here finds all that was logged until here
            weights_only = self.save_weights_only if weights_only is None else weights_only
            handle = trainer.save_checkpoint(plan.path, weights_only=weights_only, wait=waits)
        except BaseException as error:
            self.load_state_dict(before)
            if trainer.was_preempted or not self._may_go_on(error):
                raise
            return
        work = AfterSave(plan, self._pointer, list(self._kept.doomed))
        if waits:
            if trainer.is_global_zero:
                work.run()
            self._end_save(trainer, work)
            return
        if trainer.is_global_zero:
            handle.when_saved(work.run)
        self._pending = PendingSave(handle, work, before)

    def _end_save(self, trainer: Any, work: AfterSave) -> None:
        self._kept.doomed = work.left
        if trainer.is_global_zero and self.verbose:
            score = work.plan.score
            said = "" if self.monitor is None or score is None else f" ({self.monitor} {float(score):.5g})"
            print(f"Step {trainer.global_step}: saved {work.plan.path}{said}")
        for logger in trainer.loggers:
            logger.after_save_checkpoint(self)

    def _look_at_pending(self, trainer: Any) -> None:
        """Does not wait. Ranks: all, after each step."""
        assert self._pending is not None
        handle = self._pending.handle
        with self._undone_on_error(trainer):
            handle.check()
        if handle.is_done and not handle.has_failed:
            self._end_pending(trainer)

    def _end_pending(self, trainer: Any, *, is_next_due: bool = False) -> None:
        """Wait for a save that is being written. Ranks: all; any once it is known to be there."""
        if self._pending is None:
            return
        with self._undone_on_error(trainer):
            self._pending.handle.wait_turn() if is_next_due else self._pending.handle.wait()
        pending, self._pending = self._pending, None
        if pending is not None:
            self._end_save(trainer, pending.work)

    def _end_quietly(self, trainer: Any) -> None:
        """Wait for a save that is being written, where its error is not what matters: it is in the log. Ranks: any."""
        pending, self._pending = self._pending, None
        if pending is not None and pending.handle.wait_quietly():
            self._end_save(trainer, pending.work)
        elif pending is not None:
            self.load_state_dict(pending.before)

    @contextmanager
    def _undone_on_error(self, trainer: Any) -> Iterator[None]:
        """One that could not be saved is not among those kept. A run that is told to end tries its last one."""
        try:
            yield
        except CheckpointError as error:
            assert self._pending is not None
            pending, self._pending = self._pending, None
            self.load_state_dict(pending.before)
            if not self._may_go_on(error) and not _is_told_to_end(trainer):
                raise

    def _may_go_on(self, error: BaseException) -> bool:
        """Training may go on without a checkpoint that could not be saved; that is said."""
        is_tolerated = self.on_save_error == "warn" and isinstance(error, CheckpointError)
        if is_tolerated:
            _log.warning("Training goes on without a checkpoint: %s", error)
        return is_tolerated

    @property
    def _pointer(self) -> str | None:
        if not self.save_last:
            return None
        assert self.dirpath is not None
        return join(self.dirpath, f"{self.CHECKPOINT_NAME_LAST}{self.FILE_EXTENSION}")


def _is_told_to_end(trainer: Any) -> bool:
    """A rank was, and its last checkpoint comes after the next step at the latest. Ranks: all, at the same step."""
    is_noted = trainer.run.fabric.stop_signals.is_noted()
    return bool(trainer.collectives.agree([float(is_noted)])[0] > 0)
