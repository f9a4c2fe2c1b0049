"""Where inf and nan come from, without a read-back in each step."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor

from drivetrain.loop.callback import Callback

_log = logging.getLogger("drivetrain.callbacks")


class NonFiniteMonitor(Callback):
    """Counts losses and gradients that are inf or nan, and says which parameters were the first to have them.

    It looks on the device, and reads back with the rows of the loggers alone: what it says comes up to one row late.
    With it the policy stays as it is: `Trainer(nonfinite=...)` says what happens to such a step. Steps that are
    skipped there are counted by their losses; gradients are those that reach the optimizer, of scaled float16 too,
    where an overflow now and then is no fault.

    Args:
        gradients: Look at gradients, too: one norm for each parameter and step.

    Attributes:
        num_losses: Micro-batches, on all ranks, whose loss was inf or nan.
        num_steps: Steps with gradients that were.
        first_step: The first of those steps, counted from 1; `None` before there is one.
        first_parameters: What had them in that step.
    """

    def __init__(self, gradients: bool = True) -> None:
        self.gradients = gradients
        self.num_losses = self.num_steps = 0
        self.first_step: int | None = None
        self.first_parameters: list[str] = []
        self._losses: Any = 0
        self._steps: Any = 0
        self._first: Any = -1
        self._bad: Tensor | None = None  # of the first step, by parameter
        self._names: list[str] = []

    def state_dict(self) -> dict[str, Any]:
        """What was found."""
        return {
            "num_losses": self.num_losses, "num_steps": self.num_steps, "first_step": self.first_step,
            "first_parameters": self.first_parameters,
        }  # fmt: skip

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on counting."""
        for name, value in state_dict.items():
            setattr(self, name, value)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to look."""
        self._losses, self._steps, self._first, self._bad = 0, 0, -1, None

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        """Look at a loss."""
        if isinstance(loss, Tensor):
            self._losses = self._losses + ~torch.isfinite(loss.detach())

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Look at all gradients, once for each step."""
        if not self.gradients or optimizer is not trainer.optimizers[0]:
            return
        named = [(name, p.grad) for name, p in pl_module.named_parameters() if p.grad is not None]
        if not named:
            return
        names, gradients = zip(*named, strict=True)
        bad = ~torch.stack([_local(norm) for norm in torch._foreach_norm(list(gradients))]).isfinite()
        is_bad = bad.any()
        if self._bad is None or self._names != list(names):
            self._names, self._bad = list(names), torch.zeros_like(bad)
            self._first = torch.full((), -1, device=bad.device)
        is_first = is_bad & (self._first < 0)
        self._first = torch.where(is_first, trainer.global_step + 1, self._first)
        self._bad = torch.where(is_first, bad, self._bad)
        self._steps = self._steps + is_bad

    def on_step_end(self, trainer: Any, pl_module: Any) -> None:
        """Read back, where a row of the loggers is written.

        Ranks: all (one small message for each row, none on one rank).
        """
        if trainer.is_log_step:
            self._report(trainer)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Read back what came after the last row.

        Ranks: all (one small message, none on one rank).
        """
        self._report(trainer)

    def _report(self, trainer: Any) -> None:
        losses, steps = float(self._losses), float(self._steps)
        told = [losses, steps]
        if trainer.world_size > 1:
            losses = trainer.collectives.agree([losses])[0] / trainer.collectives.num_alike
            told = [losses, trainer.collectives.agree([steps], "max")[0]]
        self._losses = self._steps = 0
        if told == [0.0, 0.0]:
            return
        self.num_losses += int(told[0])
        self.num_steps += int(told[1])
        if self.first_step is None and int(self._first) >= 0 and self._bad is not None:
            self.first_step = int(self._first)
            flags = self._bad.tolist()
            self.first_parameters = [name for name, is_bad in zip(self._names, flags, strict=True) if is_bad]
        for logger in trainer.loggers:
            values = {"nonfinite/losses": float(self.num_losses), "nonfinite/steps": float(self.num_steps)}
            logger.log_metrics(values, step=trainer.global_step)
        if trainer.is_global_zero:
            shown = ", ".join(self.first_parameters[:5]) + (" and others" if len(self.first_parameters) > 5 else "")
            where = f" first in step {self.first_step}, of {shown};" if self.first_step is not None else ""
            _log.warning(
                "inf or nan: %d losses and the gradients of %d steps since the last row,%s at step %d.",
                int(told[0]), int(told[1]), where, trainer.global_step,
            )  # fmt: skip


def _local(norm: Any) -> Tensor:
    """This rank's part of a norm, where parameters are sharded."""
    local: Tensor = norm.to_local() if hasattr(norm, "to_local") else norm
    return local
