"""Averages of the weights of the last epochs, trained at a learning rate of their own."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from drivetrain.base.errors import ConfigError
from drivetrain.callbacks.batch_statistics import batch_norms, counted_anew
from drivetrain.callbacks.weight_averaging import WeightAveraging
from drivetrain.fabric.evaluation_batches import evaluation_batches


class StochasticWeightAveraging(WeightAveraging):
    """Averages the weights at the ends of the last epochs (Izmailov et al., 2018); the average is what training leaves.

    In these epochs the learning rate goes to one of its own and stays there, whatever schedulers say. Before the end
    of training, batch norms get the statistics that belong to the average, by one pass over the training data without
    gradients. Validation during training is of the weights that are trained.

    Args:
        swa_lrs: The learning rate, or one for each parameter group of all optimizers together.
        swa_epoch_start: The first of these epochs, counted from 0, or the part of `max_epochs` that is before it.
        annealing_epochs: Over how many epochs the rate goes there; 0 for at once.
        annealing_strategy: `"cos"` or `"linear"`.
        avg_fn: Gives the new average from `(average, value, num_updates)`; by default all epochs count alike.

    Raises:
        ConfigError: Arguments that do not fit.
    """

    def __init__(
        self,
        swa_lrs: float | Sequence[float],
        swa_epoch_start: int | float = 0.8,
        annealing_epochs: int = 10,
        annealing_strategy: str = "cos",
        avg_fn: Callable[[Tensor, Tensor, int], Tensor] | None = None,
    ) -> None:
        super().__init__(avg_fn=avg_fn, update_every="1 epoch", use_in_evaluation=False)
        rates = [swa_lrs] if isinstance(swa_lrs, (int, float)) else list(swa_lrs)
        is_part = isinstance(swa_epoch_start, float)
        is_start = 0 <= swa_epoch_start <= 1 if is_part else swa_epoch_start >= 0
        if not rates or min(rates) <= 0 or not is_start or annealing_strategy not in ("cos", "linear"):
            raise ConfigError(
                f"StochasticWeightAveraging got swa_lrs={swa_lrs!r}, swa_epoch_start={swa_epoch_start!r}, "
                f"annealing_strategy={annealing_strategy!r}.",
                code="weight-averaging",
                do="Use rates above 0, an epoch from 0 or a part from 0.0 to 1.0, and 'cos' or 'linear'.",
            )
        self.swa_lrs, self.swa_epoch_start = swa_lrs, swa_epoch_start
        self.annealing_epochs, self.annealing_strategy = annealing_epochs, annealing_strategy
        self._rates_before: list[float] = []

    @property
    def replaces_weights(self) -> bool:
        """At the end of training."""
        return True

    @property
    def state_key(self) -> str:
        """Tells averages apart by when they begin, and at which rate."""
        return f"{type(self).__qualname__}(swa_lrs={self.swa_lrs}, swa_epoch_start={self.swa_epoch_start})"

    def state_dict(self) -> dict[str, Any]:
        """The average, and the rates from which it began. All ranks."""
        state = super().state_dict()
        return {**state, "rates_before": self._rates_before} if state or self._rates_before else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep it until the module is there. All ranks."""
        if "num_updates" in state_dict:
            super().load_state_dict(state_dict)
        self._rates_before = list(state_dict["rates_before"])

    def _forget(self) -> None:
        super()._forget()
        self._rates_before = []

    # ---------------------------------------------------------------- learning rates

    def first_epoch(self, trainer: Any) -> int:
        """The first epoch whose weights are averaged.

        Raises:
            ConfigError: It is a part of a run without an end.
        """
        if not isinstance(self.swa_epoch_start, float):
            return self.swa_epoch_start
        if trainer.max_epochs == -1:
            raise ConfigError(
                f"swa_epoch_start={self.swa_epoch_start} is a part of max_epochs, which is not given.",
                code="weight-averaging",
                do="Give max_epochs to the Trainer, or the epoch as a whole number.",
            )
        return int(trainer.max_epochs * self.swa_epoch_start)

    def should_update(self, trainer: Any) -> bool:
        """It is one of the epochs."""
        return bool(trainer.current_epoch >= self.first_epoch(trainer))

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Note the rates before the first of the epochs, and set them in each."""
        if self.should_update(trainer) and not self._rates_before:
            self._rates_before = [float(group["lr"]) for group in _groups(trainer)]
        self._set_rates(trainer)

    def on_step_end(self, trainer: Any, pl_module: Any) -> None:
        """Set the rates again, if schedulers have moved them.

        Ranks: all.
        """
        super().on_step_end(trainer, pl_module)
        self._set_rates(trainer)

    def _set_rates(self, trainer: Any) -> None:
        if not self._rates_before or not self.should_update(trainer):
            return
        groups = _groups(trainer)
        rates = self.swa_lrs if isinstance(self.swa_lrs, Sequence) else [self.swa_lrs] * len(groups)
        if not len(rates) == len(groups) == len(self._rates_before):
            raise ConfigError(
                f"StochasticWeightAveraging has {len(rates)} rates, and the optimizers {len(groups)} parameter groups.",
                code="weight-averaging",
                do="Give one rate, or one for each group.",
            )
        done = trainer.current_epoch - self.first_epoch(trainer)
        share = min(1.0, done / self.annealing_epochs) if self.annealing_epochs else 1.0
        if self.annealing_strategy == "cos":
            share = (1 - math.cos(math.pi * share)) / 2
        for group, before, rate in zip(groups, self._rates_before, rates, strict=True):
            group["lr"] = before + (rate - before) * share

    # ---------------------------------------------------------------- the end

    def forward_of(self, batch: Any) -> Any:
        """What the module's `forward` is given of a batch, to count statistics; override it for batches of your own."""
        return batch[0] if isinstance(batch, (list, tuple)) else batch

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Put the average into the module, with batch statistics that belong to it.

        Ranks: all.
        """
        if trainer.was_preempted:  # the run that goes on comes to its end
            return
        if not self.num_updates:
            warnings.warn("StochasticWeightAveraging: training ended before its first epoch.", stacklevel=2)
            return
        super().on_train_end(trainer, pl_module)
        if batch_norms(pl_module):
            self._count_statistics(trainer, pl_module)

    @torch.no_grad()
    def _count_statistics(self, trainer: Any, module: Any) -> None:
        names = [f"{name}.{one}" for name in batch_norms(module) for one in ("running_mean", "running_var")]
        buffers = dict(module.named_buffers())
        self._training.update({name: buffers[name].clone() for name in names})
        strategy, prepared, loader = trainer.strategy, trainer.run.prepared, trainer.run.train_loader
        limit = None if trainer.num_training_batches == math.inf else int(trainer.num_training_batches)
        loader.set_position(0)
        with counted_anew(module, trainer.collectives):
            for _, batch in evaluation_batches(loader, strategy, prepared, method="forward", limit=limit):
                strategy.call(prepared, "forward", self.forward_of(batch))
        self._average.update({name: buffers[name].clone() for name in names})


def _groups(trainer: Any) -> list[dict[str, Any]]:
    return [group for optimizer in trainer.optimizers for group in optimizer.param_groups]
