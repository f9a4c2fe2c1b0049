"""The loop of training in manual optimisation: `training_step` runs backward and steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from drivetrain.base.errors import UnevenDataError
from drivetrain.fabric.window import END, Window
from drivetrain.loop.fit_loop import FitLoop
from drivetrain.loop.left_over import LeftOver
from drivetrain.loop.manual_optimization import ManualOptimization
from drivetrain.loop.module import Module


@dataclass
class ManualFitLoop(FitLoop):
    """Calls `training_step` for each micro-batch. A step is counted when any optimizer has stepped.

    Attributes:
        module: The user's; its step runs beside the strategy's wrapper.
    """

    module: Module | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.manual = ManualOptimization(self.job, self.hooks, self.loader.batch_size or 1)
        self._last_batch = END
        self._begins_window = True
        self._is_told = False
        self.call = lambda prepared, method, *args: getattr(self.module, method)(*args)  # beside the wrapper
        running = self.job.strategy.running
        self._context = running.precision.context_for(running.device.type)

    def run(self) -> None:
        """Train.

        Ranks: all.
        """
        assert self.module is not None
        self.module._manual = self.manual
        try:
            with self.manual.guarded():
                super().run()
        finally:
            self.module._manual = None

    def step(self, window: Window) -> None:
        """One micro-batch. A rank that has none goes along with its last one, and adds nothing.

        Ranks: all.
        """
        if self._begins_window:
            self.metrics.begin_window()
        for batch in window:
            self._last_batch = batch
            self._micro_batch(window, batch, window.samples)
        if window.index < 0:
            if self._last_batch is END:
                collectives = self.job.collectives
                raise UnevenDataError(
                    "This rank has no batch at all, so that it cannot go along with the others.",
                    code="uneven",
                    do="Give each rank at least one batch in manual optimisation.",
                    rank=(collectives.rank, collectives.world_size),
                )
            self._micro_batch(window, self._last_batch, 0)
        if self.job.num_ranks > 1:
            window.agree()
        window.close(ends_step=False)
        self._end_micro_batch(window)

    def _micro_batch(self, window: Window, batch: Any, samples: int) -> None:
        hooks, metrics, progress = self.hooks, self.metrics, self.progress
        module, index = self.module, window.start + max(window.index, 0)
        assert module is not None
        for hook in hooks.on_train_batch_start:
            hook(batch, index)
        metrics.samples = samples
        self.manual.begin_micro_batch(samples)
        with self._context():
            inputs = (batch, index) if self.takes_index else (batch,)
            output = self.call(self.job.prepared[0], "training_step", *inputs)
        if self.num_rounds is not None and window.start + window.rounds >= self.num_rounds:
            self.manual.flush()
        progress.micro_step += 1
        self._count_steps()
        for hook in hooks.on_train_batch_end:
            hook(output, batch, index)
        metrics.end_micro_batch(samples)

    def _end_micro_batch(self, window: Window) -> None:
        has_stepped = self._begins_window = self.manual.has_stepped
        self._count(window)
        self.at.stage = "step_end"
        if has_stepped:
            self._report_step()

    def wants_end(self, window: Window) -> bool:
        """Told to end, at this micro-batch or before, and no window is half done: a checkpoint could not hold it."""
        self._is_told = self._is_told or super().wants_end(window)
        return self._is_told and self.manual.is_between_steps

    def _end_epoch(self, left: LeftOver | None = None) -> bool:
        """After an epoch whose length nobody knew, windows that are not full make their step first."""
        if self.num_rounds is None:
            self.manual.has_stepped = False
            self.manual.flush()
            self._count_steps()
        return super()._end_epoch(left)

    def _count_steps(self) -> None:
        """One step, if any optimizer has stepped."""
        if self.manual.has_stepped:
            self.progress.step += 1
            self.job.strategy.end_step(self.job.prepared)
