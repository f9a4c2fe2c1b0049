"""Notice when ranks drift apart."""

from __future__ import annotations

import warnings
from typing import Any

from drivetrain.base.errors import ConfigError
from drivetrain.loop.callback import Callback
from drivetrain.strategies.parameter_check import check_same_values


class ParameterCheck(Callback):
    """Compares the parameters of all ranks, bit for bit, and ends the run where they differ.

    It looks before training, after each n-th optimizer step, before that step is saved, and at the end of training.
    Parameters that are sharded are left out; on one rank nothing is done. Under a strategy whose ranks step apart
    (LocalSGD, DiLoCo) only the beginning and the end are looked at.

    Args:
        every_n_steps: Optimizer steps between two looks.
        buffers: Compare buffers too. Batch statistics differ between ranks by design: DDP gives all of them rank 0's
            only at the start of each window.

    Raises:
        ConfigError: `every_n_steps` is below 1.
    """

    def __init__(self, every_n_steps: int = 100, *, buffers: bool = False) -> None:
        if every_n_steps < 1:
            raise ConfigError(
                f"ParameterCheck got every_n_steps={every_n_steps}.", code="parameter-check", do="Use 1 or more."
            )
        self.every_n_steps = every_n_steps
        self.buffers = buffers
        self._checked_step = -1

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Look at what training begins with.

        Ranks: all.
        """
        if self._look(trainer, pl_module) == 0 and trainer.world_size > 1:
            warnings.warn("ParameterCheck compares nothing: all parameters are sharded.", stacklevel=2)

    def on_step_end(self, trainer: Any, pl_module: Any) -> None:
        """Look, if it is time to.

        Ranks: all.

        Raises:
            ModelError: On every rank, naming the first parameter that differs, the ranks and the step.
        """
        if trainer.global_step % self.every_n_steps == 0 and not trainer.strategy.traits.steps_apart:
            self._look(trainer, pl_module)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Look at what comes of the run, unless its last step was looked at.

        Ranks: all.

        Raises:
            ModelError: As after a step.
        """
        if trainer.global_step != self._checked_step:
            self._look(trainer, pl_module)

    def _look(self, trainer: Any, module: Any) -> int:
        self._checked_step = trainer.global_step
        return check_same_values(module, trainer.collectives, buffers=self.buffers, step=trainer.global_step)
