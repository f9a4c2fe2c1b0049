"""The scale of float16 losses: which gradients it holds for, and when it may move."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor
from torch.optim import Optimizer

from drivetrain.strategies.optimizer_names import parameters_of


class LossScale:
    """Torch's scaler, for several optimizers and windows that step in turn on gradients of one scale.

    Attributes:
        scaler: Torch's own.

    Args:
        device: Where losses are.
        scaler: Torch's own, or one that knows of ranks.
    """

    def __init__(self, device: torch.device, scaler: torch.amp.GradScaler) -> None:
        self.scaler = scaler
        self.scaler.scale(torch.zeros((), device=device))  # a rank may have no loss in its first window
        self._holders: WeakSet[Any] = WeakSet()
        self._has_stepped = self._owes_backoff = False

    def scaled(self, loss: Tensor) -> Tensor:
        """The loss times the scale."""
        self.update()
        scaled: Tensor = self.scaler.scale(loss)
        return scaled

    def hold(self, window: Any) -> None:
        """A window holds gradients of the present scale, until `release`."""
        self.update()
        self._holders.add(window)

    def release(self, *windows: Any) -> None:
        """Windows have stepped."""
        for window in windows:
            self._holders.discard(window)
        self.update()

    def update(self) -> None:
        """Let the scale follow the steps that were made: before the next backward, or when a window has stepped.

        Not in `step`, which several optimizers may make in turn. While a window holds gradients the scale stays, and
        is lowered afterwards if a step overflowed meanwhile.
        """
        scaler = self.scaler
        if self._holders:
            if self._has_stepped:
                self._owes_backoff |= any(self.has_overflowed(key) for key in scaler._per_optimizer_states)
                scaler.update(scaler.get_scale())
        elif self._owes_backoff:
            scaler.update(scaler.get_scale() * scaler.get_backoff_factor())
            self._owes_backoff = False
        elif self._has_stepped:
            scaler.update()
        self._has_stepped = False

    def step(self, optimizers: Sequence[Optimizer]) -> bool:
        """Step with those optimizers whose gradients did not overflow; False if any of them did."""
        has_stepped = True
        for optimizer in optimizers:
            if any(p.grad is not None for p in parameters_of(optimizer)):
                self.scaler.step(optimizer)  # torch refuses an optimizer without any gradient
                has_stepped &= not self.has_overflowed(id(optimizer))
                self._has_stepped = True
        return has_stepped

    def has_overflowed(self, key: int) -> bool:
        """An optimizer's gradients overflowed. Torch (2.13) notes it by `id` of each, and has no public way to ask."""
        found = self.scaler._per_optimizer_states[key]["found_inf_per_device"]
        return any(bool(one) for one in found.values())
