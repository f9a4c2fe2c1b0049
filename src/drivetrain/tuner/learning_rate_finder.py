"""The search for a learning rate, as a callback."""

from __future__ import annotations

import logging
from typing import Any

from drivetrain.loop.callback import Callback
from drivetrain.loop.optimizers import read_configuration
from drivetrain.tuner.attribute import RATES, attribute_name, set_attribute
from drivetrain.tuner.inner_search import search_inside
from drivetrain.tuner.lr_find import LRFindResult, Sweep, find_lr

_log = logging.getLogger("drivetrain.tuner")


class LearningRateFinder(Callback):
    """Looks for a learning rate at the start of `fit`, and trains with it.

    The search is that of `Tuner.lr_find`: on a copy of the module, after which everything is what it was. Then the
    module's attribute is set, and its optimizers are configured again, so that the training is the one that would have
    begun with that rate. A run that goes on from a checkpoint has the rates of the checkpoint, and does not search.

    For searches of your own call `lr_find`, from a hook that runs between two windows, and override `on_fit_start`.

    Args:
        min_lr: The first learning rate.
        max_lr: The last one.
        num_training_steps: Optimizer steps.
        mode: The rate grows by a factor (`"exponential"`) or by a difference (`"linear"`).
        early_stop_threshold: End where the smoothed loss is so many times the best one; `None` for never.
        update_attr: Train with what was found. False only looks.
        attr_name: The module's attribute; by default `lr` or `learning_rate`.

    Attributes:
        optimal_lr: The last search: its curve, with `suggestion()` and `plot()`.
    """

    def __init__(
        self,
        min_lr: float = 1e-8,
        max_lr: float = 1.0,
        num_training_steps: int = 100,
        mode: str = "exponential",
        early_stop_threshold: float | None = 4.0,
        update_attr: bool = True,
        attr_name: str = "",
    ) -> None:
        self._sweep = Sweep(min_lr, max_lr, num_training_steps, mode, early_stop_threshold)
        self._update_attr, self._attr_name = update_attr, attr_name
        self._used: float | None = None
        self.optimal_lr: LRFindResult | None = None

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Search, unless the run goes on.

        Ranks: all.
        """
        if not trainer.run.resumed_from:
            self.lr_find(trainer, pl_module)
        elif self._used is not None:
            set_attribute(pl_module, attribute_name(pl_module, self._attr_name, RATES), self._used)

    def lr_find(self, trainer: Any, pl_module: Any) -> None:
        """Search with the weights of now, and go on with what was found.

        Inside of training the rates of the optimizer are set, whose state stays, and its schedules go on from there.

        Ranks: all, between two windows.
        """
        name = attribute_name(pl_module, self._attr_name, RATES) if self._update_attr else ""
        kind = type(self).__name__
        result: LRFindResult | None = search_inside(kind, trainer, pl_module, find_lr, self._sweep, compiles=True)
        if result is None:
            return
        self.optimal_lr = result
        rate = result.suggestion() if name else None
        if rate is None:
            return
        self._used = rate
        set_attribute(pl_module, name, rate)
        if trainer.is_global_zero:
            _log.info("%s: %s = %g.", kind, name, rate)
        if trainer.run.loop is None:
            configured = read_configuration(pl_module.configure_optimizers(), pl_module)
            trainer.optimizers, trainer.lr_scheduler_configs = configured
        else:
            _move_rates(trainer, rate)

    def state_dict(self) -> dict[str, Any]:
        """The last search, and the rate that was used."""
        if self.optimal_lr is None:
            return {}
        found = self.optimal_lr
        curve = {"learning_rates": found.learning_rates, "losses": found.losses, "mode": found.mode}
        return {"curve": curve, "used": self._used}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore them."""
        self.optimal_lr, self._used = LRFindResult(**state_dict["curve"]), state_dict["used"]


def _move_rates(trainer: Any, rate: float) -> None:
    """Let all groups of the optimizer have a rate now; what schedules count from grows or shrinks alike."""
    (optimizer,) = trainer.optimizers
    factors = [rate / group["lr"] if group["lr"] else 1.0 for group in optimizer.param_groups]
    for group, factor in zip(optimizer.param_groups, factors, strict=True):
        group["lr"] = rate
        if "initial_lr" in group:
            group["initial_lr"] *= factor
    for config in trainer.lr_scheduler_configs:
        bases = getattr(config.scheduler, "base_lrs", None)
        if bases is not None:
            config.scheduler.base_lrs = [base * factor for base, factor in zip(bases, factors, strict=True)]
