"""A progress bar that is refreshed by the clock."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

from drivetrain.callbacks.progress_bar import ProgressBar
from drivetrain.callbacks.progress_display import Display, Status, open_display
from drivetrain.callbacks.progress_theme import RichProgressBarTheme

_log = logging.getLogger("drivetrain.callbacks")


class RichProgressBar(ProgressBar):
    """Shows epoch, step, speed and the values logged with `prog_bar=True`, on rank 0.

    A live bar on a terminal; elsewhere plain lines now and then, and at the ends of epochs. It is refreshed by the
    clock: until then a batch costs one look at it, and no value is read back from the device. If nothing can be shown,
    that is said once, and training goes on without a bar.

    Args:
        refresh_s: Seconds between two refreshes on a terminal.
        line_every_s: Seconds between two lines elsewhere.
        theme: How the live bar looks: a `RichProgressBarTheme`, or a mapping of its attributes.
        file: Where to; by default standard error.
        clock: Seconds.
    """

    def __init__(
        self,
        *,
        refresh_s: float = 0.25,
        line_every_s: float = 10.0,
        theme: RichProgressBarTheme | Mapping[str, str] | None = None,
        file: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.refresh_s = refresh_s
        self.line_every_s = line_every_s
        self._file = file
        self._clock = clock
        self.theme = theme if isinstance(theme, RichProgressBarTheme) else RichProgressBarTheme(**(theme or {}))
        self._has_failed = False
        self._due_at = math.inf
        self._display: Display | None = None
        self._mark = (0.0, 0)  # time and step from which the speed is taken
        self._per_second: float | None = None
        self._evaluation_start = 0.0
        self._evaluation_sizes: Sequence[float] = ()

    def open_display(self) -> Display:
        """Where to show it; override it for another display. Called on rank 0."""
        file = self._file if self._file is not None else sys.stderr
        return open_display(file, refresh_s=self.refresh_s, line_every_s=self.line_every_s, theme=self.theme)

    # ---------------------------------------------------------------- life

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Nothing is shown yet."""
        super().setup(trainer, pl_module, stage)
        self._has_failed, self._due_at = False, math.inf

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Leave the screen in order."""
        self._close()
        super().teardown(trainer, pl_module, stage)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Leave the screen to the traceback."""
        self._close()

    # ---------------------------------------------------------------- training

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin at the step at which the run stands."""
        self._mark, self._per_second = (self._clock(), trainer.global_step), None
        self._guard(self._begin)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Look at the clock, and show where training is if it is time."""
        if self._clock() >= self._due_at:
            self._guard(self._show_training, trainer, pl_module)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Show the whole epoch and its values."""
        self._guard(self._show_training, trainer, pl_module, is_end=True)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """The last state stays on the screen."""
        self._close()

    # ---------------------------------------------------------------- evaluation

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin."""
        self._start_evaluation(self._val_sizes)

    def on_test_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin."""
        self._start_evaluation(trainer.num_test_batches)

    def on_predict_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin."""
        self._start_evaluation(trainer.num_predict_batches)

    def on_validation_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Look at the clock, and show where validation is if it is time."""
        if self._clock() >= self._due_at:
            is_check = trainer.sanity_checking
            title = self.sanity_check_description if is_check else self.validation_description
            self._guard(self._show_evaluation, title, batch_idx, dataloader_idx)

    def on_test_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Look at the clock, and show where the test is if it is time."""
        if self._clock() >= self._due_at:
            self._guard(self._show_evaluation, self.test_description, batch_idx, dataloader_idx)

    def on_predict_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Look at the clock, and show where prediction is if it is time."""
        if self._clock() >= self._due_at:
            self._guard(self._show_evaluation, self.predict_description, batch_idx, dataloader_idx)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Within training its bar goes; by itself it stays."""
        if trainer.state.fn == "fit":
            self._guard(self._remove_evaluation)
            # Training stood still meanwhile.
            self._mark = (self._mark[0] + self._clock() - self._evaluation_start, self._mark[1])
        else:
            self._guard(self._end_evaluation, self.validation_description)

    def on_test_end(self, trainer: Any, pl_module: Any) -> None:
        """The last state stays on the screen."""
        self._guard(self._end_evaluation, self.test_description)

    def on_predict_end(self, trainer: Any, pl_module: Any) -> None:
        """The last state stays on the screen."""
        self._guard(self._end_evaluation, self.predict_description)

    # ---------------------------------------------------------------- showing

    def _guard(self, action: Callable[..., object], *args: Any, **options: Any) -> None:
        """Do something on the screen. What fails there ends the bar, not the run."""
        if self._has_failed or self.is_disabled:
            return
        try:
            action(*args, **options)
        except Exception as error:
            display, self._display = self._display, None
            self._has_failed, self._due_at = True, math.inf
            _log.warning("The progress bar failed and is off: %s: %s", type(error).__name__, error)
            try:
                if display is not None:
                    display.close()
            except Exception:
                return

    def _begin(self) -> Display:
        if self._display is None:
            self._display = self.open_display()
            self._due_at = self._clock() + self._display.interval_s
        return self._display

    def _close(self) -> None:
        self._due_at = math.inf
        if self._display is not None:
            self._guard(self._display.close)
        self._display = None

    def _show_training(self, trainer: Any, pl_module: Any, *, is_end: bool = False) -> None:
        display, now = self._begin(), self._clock()
        seconds, num_steps = now - self._mark[0], trainer.global_step - self._mark[1]
        if num_steps > 0 and seconds > 0:
            self._per_second = num_steps / seconds
            self._mark = (now, trainer.global_step)
        done, total = _steps_of_epoch(trainer)
        of_all = f"/{trainer.max_epochs}" if trainer.max_epochs is not None and trainer.max_epochs > 0 else ""
        title = f"Epoch {trainer.current_epoch + 1}{of_all}"
        values = self.get_metrics(trainer, pl_module)
        status = Status("train", title, done, total, "steps", self._per_second, values)
        display.end(status) if is_end else display.show(status)
        self._due_at = self._clock() + display.interval_s

    def _start_evaluation(self, sizes: Sequence[float]) -> None:
        self._evaluation_start, self._evaluation_sizes = self._clock(), sizes
        self._guard(self._begin)

    def _show_evaluation(self, title: str, batch_idx: int, dataloader_idx: int) -> None:
        display = self._begin()
        display.show(self._evaluation(title, sum(self._evaluation_sizes[:dataloader_idx]) + batch_idx + 1))
        self._due_at = self._clock() + display.interval_s

    def _end_evaluation(self, title: str) -> None:
        self._begin().end(self._evaluation(title, sum(self._evaluation_sizes)))

    def _remove_evaluation(self) -> None:
        self._begin().remove("evaluation")

    def _evaluation(self, title: str, num_done: float) -> Status:
        num_all = sum(self._evaluation_sizes)
        seconds = self._clock() - self._evaluation_start
        return Status(
            "evaluation",
            title,
            0 if num_done == math.inf else int(num_done),
            None if num_all == math.inf else int(num_all),
            "batches",
            num_done / seconds if seconds > 0 and num_done != math.inf else None,
        )


def _steps_of_epoch(trainer: Any) -> tuple[int, int | None]:
    """Optimizer steps of this epoch: those done, also before a resume, and all."""
    size = trainer.accumulate_grad_batches
    micro_steps, all_micro_steps = trainer.progress.epoch_micro_step, trainer.num_training_batches
    done = math.ceil(micro_steps / size)
    if all_micro_steps == math.inf:
        total = None
    else:
        total = math.ceil(all_micro_steps / size)
    if trainer.max_steps is not None and trainer.max_steps >= 0:
        end = done + max(0, trainer.max_steps - trainer.global_step)
        total = end if total is None else min(total, end)
    return done, total
