"""The parts of an optimizer step that a module may override; who overrides none of them pays nothing."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from drivetrain.base.errors import HookError
from drivetrain.loop.overrides import overridden

_NUM_ARGUMENTS = {
    "backward": 1, "optimizer_step": 4, "optimizer_zero_grad": 3, "configure_gradient_clipping": 3,
    "lr_scheduler_step": 2,
}  # fmt: skip
_AUTOMATIC = ("optimizer_step", "optimizer_zero_grad", "configure_gradient_clipping")


class StepMethods:
    """What a step does in its parts. When each runs, and what is true by then, is the loop's to say."""

    clip_gradients: Callable[..., Any]

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Make the gradients of one micro-batch; by default `loss.backward()`.

        Args:
            loss: Scaled already: for the window, and for float16.
            args: For `loss.backward`.
            kwargs: Likewise.
        """
        loss.backward(*args, **kwargs)

    def optimizer_step(
        self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Callable[[], Any] | None = None
    ) -> None:
        """Make the step of one optimizer, once for each window; by default `optimizer.step(optimizer_closure)`.

        Args:
            epoch: The present one.
            batch_idx: The window's last micro-batch.
            optimizer: Its `step` knows of the strategy and of the loss scaling; it has the attributes of yours.
            optimizer_closure: Gives the last loss. Gradients are there already, synced and clipped.
        """
        optimizer.step(closure=optimizer_closure)

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Optimizer) -> None:
        """Forget the gradients of one optimizer, after the step; by default they become `None`."""
        optimizer.zero_grad()

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip the gradients of one optimizer, synced and unscaled; by default by `self.clip_gradients(...)`.

        Ranks: all.

        Args:
            optimizer: Yours.
            gradient_clip_val: As the trainer was given it.
            gradient_clip_algorithm: Likewise.
        """
        self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)

    def lr_scheduler_step(self, scheduler: Any, metric: Any | None) -> None:
        """Move a scheduler on by one, after a step or an epoch; by default `scheduler.step()`.

        Args:
            scheduler: Yours.
            metric: What a plateau scheduler monitors, else `None`.
        """
        scheduler.step() if metric is None else scheduler.step(metric)


class SteppingOptimizer:
    """An optimizer for one `optimizer_step`.

    Attributes:
        optimizer: The user's.
        has_stepped: Its `step` was called, and changed the weights.
    """

    def __init__(self, optimizer: Optimizer, step: Callable[[Sequence[Optimizer]], bool]) -> None:
        self.optimizer = optimizer
        self.has_stepped = False
        self._step = step

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step.

        Returns:
            What the closure gives.
        """
        loss = closure() if closure is not None else None
        self.has_stepped |= self._step([self.optimizer])
        return loss

    def __getattr__(self, name: str) -> Any:
        if "optimizer" not in self.__dict__:  # while it is copied
            raise AttributeError(name)
        return getattr(self.optimizer, name)


class ModuleSteps:
    """What a module has overridden, put into the places of a loop where the usual would run.

    Args:
        module: The user's.
        loop: That of a training.
        clip: `gradient_clip_val` and `gradient_clip_algorithm`.

    Raises:
        HookError: In manual optimisation nothing would call what was overridden.
        ConfigError: A method has other arguments.
    """

    def __init__(self, module: Any, loop: Any, clip: tuple[float | None, str | None]) -> None:
        self.module, self.loop = module, loop
        own = {name: overridden(module, StepMethods, name, number) for name, number in _NUM_ARGUMENTS.items()}
        self._own = {name: method for name, method in own.items() if method is not None}
        if not module.automatic_optimization:
            self._refuse()
        loop.job.strategy.own_backward = self._own.get("backward")
        for config in loop.schedulers:
            config.own_step = self._own.get("lr_scheduler_step")
        if "configure_gradient_clipping" in self._own:
            loop.job.clips, loop.job.own_clip = True, functools.partial(self._clip, *clip)
        if any(name in self._own for name in _AUTOMATIC):
            self._loss: Any = None
            self._index = 0
            loop.hooks.on_train_batch_start = (*loop.hooks.on_train_batch_start, self._note_batch)
            loop.hooks.on_before_backward = (*loop.hooks.on_before_backward, self._note_loss)
        if "optimizer_step" in self._own:
            loop.make_steps = self._step
        if "optimizer_zero_grad" in self._own:
            loop.zero = self._zero

    def _refuse(self) -> None:
        for name in _AUTOMATIC:
            if name in self._own:
                raise HookError(
                    f"{type(self.module).__name__} defines {name}, which nothing calls in manual optimisation.",
                    code="unknown-hook",
                    do="Do it in training_step; or leave automatic_optimization as it is.",
                )

    def _note_batch(self, batch: Any, index: int) -> None:
        self._index = index

    def _note_loss(self, loss: Any) -> None:
        self._loss = loss.detach() if isinstance(loss, Tensor) else loss

    def _step(self, optimizers: Sequence[Optimizer]) -> bool:
        has_stepped = False
        for optimizer in optimizers:
            one = SteppingOptimizer(optimizer, self.loop.job.strategy.step)
            self._own["optimizer_step"](self.loop.progress.epoch, self._index, one, lambda: self._loss)
            has_stepped |= one.has_stepped
        return has_stepped

    def _zero(self, optimizer: Optimizer) -> None:
        self._own["optimizer_zero_grad"](self.loop.progress.epoch, self._index, optimizer)

    def _clip(self, clip_value: float | None, algorithm: str | None) -> None:
        for optimizer in self.loop.optimizers:
            self.module._clipped = optimizer
            try:
                self._own["configure_gradient_clipping"](optimizer, clip_value, algorithm)
            finally:
                del self.module._clipped
