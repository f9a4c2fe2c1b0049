"""A learning rate from one short run in which it grows from step to step (Smith 2017, arXiv:1506.01186)."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drivetrain.base.errors import ConfigError
from drivetrain.base.optional import import_extra
from drivetrain.fabric.fabric import Fabric
from drivetrain.loop.callback import Callback
from drivetrain.loop.step_output import read_output
from drivetrain.trainer.request import Request
from drivetrain.trainer.view import TrainerView
from drivetrain.tuner.trial import run_trial

_SMOOTHING = 0.9
_BLUE, _ORANGE, _GREY = "#0072B2", "#D55E00", "#999999"


@dataclass(frozen=True)
class Sweep:
    """Which learning rates are tried.

    Attributes:
        min_lr: The first.
        max_lr: The last.
        num_steps: How many, one for each optimizer step.
        mode: `"exponential"` (by a factor) or `"linear"` (by a difference).
        stop_factor: The run ends early where the smoothed loss is so many times the best one; `None` for never.
    """

    min_lr: float = 1e-8
    max_lr: float = 1.0
    num_steps: int = 100
    mode: str = "exponential"
    stop_factor: float | None = 4.0

    def __post_init__(self) -> None:
        if self.mode not in ("exponential", "linear"):
            raise ConfigError(f"lr_find got mode={self.mode!r}.", code="lr-find", do="Use 'exponential' or 'linear'.")
        if not (0 < self.min_lr < self.max_lr) or self.num_steps < 2:
            raise ConfigError(
                f"lr_find got min_lr={self.min_lr}, max_lr={self.max_lr}, num_training={self.num_steps}.",
                code="lr-find",
                do="Use 0 < min_lr < max_lr, and 2 steps or more.",
            )

    def at(self, step: int) -> float:
        """The learning rate of a step, from 0."""
        part = step / (self.num_steps - 1)
        if self.mode == "linear":
            return self.min_lr + (self.max_lr - self.min_lr) * part
        return float(self.min_lr * (self.max_lr / self.min_lr) ** part)


@dataclass
class LRFindResult:
    """The loss of each step, and the learning rate with which that step was made. Equal on all ranks.

    Attributes:
        learning_rates: One for each step.
        losses: The mean over the window and all ranks, before the step.
        mode: How the rates grow.
    """

    learning_rates: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    mode: str = "exponential"

    @property
    def smoothed(self) -> list[float]:
        """An exponential mean of the losses (0.9), without a bias to its start."""
        values, mean = [], 0.0
        for number, loss in enumerate(self.losses, start=1):
            mean = _SMOOTHING * mean + (1 - _SMOOTHING) * loss
            values.append(mean / (1 - _SMOOTHING**number))
        return values

    @property
    def results(self) -> dict[str, list[float]]:
        """`"lr"` and the smoothed `"loss"`."""
        return {"lr": self.learning_rates, "loss": self.smoothed}

    def suggestion(self, skip_begin: int = 10, skip_end: int = 1) -> float | None:
        """The learning rate at which the smoothed loss falls fastest; `None` if it falls nowhere.

        Args:
            skip_begin: Steps at the start that are not looked at.
            skip_end: Steps at the end.
        """
        index = self._steepest(skip_begin, skip_end)
        return None if index is None else self.learning_rates[index]

    def _steepest(self, skip_begin: int, skip_end: int) -> int | None:
        loss = self.smoothed
        x = [math.log(rate) for rate in self.learning_rates] if self.mode == "exponential" else self.learning_rates
        inner = range(max(skip_begin, 1), min(len(loss) - skip_end, len(loss) - 1))
        slopes = {at: (loss[at + 1] - loss[at - 1]) / (x[at + 1] - x[at - 1]) for at in inner}
        index = min(slopes, key=lambda at: slopes[at], default=None)
        if index is None or slopes[index] >= 0:
            warnings.warn(
                f"No learning rate is suggested: the loss of {len(loss)} steps falls nowhere between the first "
                f"{skip_begin} and the last {skip_end}. Try more steps, or another range.",
                stacklevel=3,
            )
            return None
        return index

    def plot(self, suggest: bool = False, show: bool = False, ax: Any = None) -> Any:
        """A figure of loss over learning rate.

        Args:
            suggest: Mark the suggestion.
            show: Open a window with it.
            ax: Draw into these axes of matplotlib.

        Returns:
            The figure.

        Raises:
            MissingExtraError: matplotlib is not installed.
        """
        figure_module = import_extra("matplotlib.figure", extra="plots", purpose="LRFindResult.plot")
        if ax is None:
            ax = figure_module.Figure(figsize=(7, 4.5), layout="constrained").add_subplot()
        ax.plot(self.learning_rates, self.losses, color=_GREY, linewidth=0.8, label="loss of each step")
        ax.plot(self.learning_rates, self.smoothed, color=_BLUE, linewidth=1.8, label="smoothed")
        if self.mode == "exponential":
            ax.set_xscale("log")
        ax.set_xlabel("learning rate")
        ax.set_ylabel("training loss")
        index = self._steepest(10, 1) if suggest else None
        if index is not None:
            rate, loss = self.learning_rates[index], self.smoothed[index]
            ax.axvline(rate, color=_ORANGE, linewidth=0.8, linestyle="--")
            ax.plot([rate], [loss], "o", color=_ORANGE, label=f"steepest: {rate:.3g}")
        ax.grid(alpha=0.3)
        ax.legend(frameon=False)
        if show:
            import_extra("matplotlib.pyplot", extra="plots", purpose="LRFindResult.plot").show()
        return ax.figure

    def save_plot(self, path: str | Path) -> None:
        """Write the figure, with the suggestion, as a picture."""
        self.plot(suggest=True).savefig(path, dpi=150)


class _Recorder(Callback):
    """Sets the learning rate of each step and notes its loss; the module's own schedulers rest."""

    def __init__(self, sweep: Sweep) -> None:
        self.sweep = sweep
        self.result = LRFindResult(mode=sweep.mode)
        self._sums = [0.0, 0.0]  # of loss * weight, of weights: of this window, on this rank

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        if len(trainer.optimizers) != 1:
            raise ConfigError(
                f"lr_find needs one optimizer; {type(pl_module).__name__} has {len(trainer.optimizers)}.",
                code="lr-find",
                do="Look for the rate of one of them with a module that has it alone.",
            )
        trainer.lr_scheduler_configs = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        loss, _ = read_output(outputs)
        weight = float(trainer.metrics.samples)
        if loss is not None and weight > 0:
            self._sums = [self._sums[0] + float(loss.detach()) * weight, self._sums[1] + weight]

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        for group in optimizer.param_groups:
            group["lr"] = self.sweep.at(trainer.global_step)

    def on_step_end(self, trainer: Any, pl_module: Any) -> None:
        total, weight = trainer.collectives.agree(self._sums, "sum")
        self._sums = [0.0, 0.0]
        loss = total / weight if weight else math.nan
        result = self.result
        if not math.isfinite(loss):
            trainer.should_stop = True
            return
        result.learning_rates.append(self.sweep.at(trainer.global_step - 1))
        result.losses.append(loss)
        smoothed = result.smoothed
        factor = self.sweep.stop_factor
        if factor is not None and len(smoothed) > 1 and smoothed[-1] > factor * min(smoothed) > 0:
            trainer.should_stop = True


def find_lr(fabric: Fabric, trainer: TrainerView, request: Request, sweep: Sweep) -> LRFindResult:
    """Run the sweep in this rank.

    Ranks: all.
    """
    recorder = _Recorder(sweep)
    run_trial(fabric, trainer, request, recorder, num_steps=sweep.num_steps)
    return recorder.result
