"""Manual optimisation: `training_step` runs backward and steps; what is synced, and when, stays in one place.

The step runs on the user's module itself, not through the strategy's wrapper: a backward inside of a wrapper's forward
would escape its sync. Gradients are averaged once for each step of an optimizer, for the parameters that it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from drivetrain.base.errors import ConfigError, OptimizerError, WindowError
from drivetrain.fabric.manual_window import ManualWindow
from drivetrain.fabric.weighted_loss import multiply_gradients
from drivetrain.fabric.window_job import Clip, WindowJob
from drivetrain.loop.hooks import Hooks


class ManualOptimization:
    """The optimizers and windows of one run in manual optimisation.

    Attributes:
        optimizers: The run's, each of which syncs before it steps.
        samples: Samples of the present micro-batch on this rank; 0 when it has none and goes along.
        has_stepped: An optimizer has stepped in the present micro-batch; where ranks step apart, on any of them.

    Args:
        job: Strategy, prepared module and optimizers.
        hooks: Bound for this run.
        batch_size: Samples of a usual micro-batch.
    """

    def __init__(self, job: WindowJob, hooks: Hooks, batch_size: int) -> None:
        self.job = job
        self.hooks = hooks
        self.batch_size = batch_size
        self.samples = batch_size
        self.has_stepped = self._is_stepping = False
        self.optimizers = [ManualOptimizer(self, self.make_window([one])) for one in job.optimizers]
        self.windows: dict[tuple[int, ...], ManualWindow] = {}

    def make_window(self, optimizers: Sequence[Optimizer]) -> ManualWindow:
        """A window of some of the optimizers."""
        job = self.job
        return ManualWindow(
            job.strategy, job.prepared, optimizers, nominal=self.batch_size, default_weight=lambda: self.samples,
            make_step=self.make_step,
        )  # fmt: skip

    def window(self, optimizers: Any, size: int, clip: Clip) -> ManualWindow:
        """The window of some of the optimizers: the same one in each micro-batch."""
        own = [self.own(one).optimizer for one in _as_list(optimizers)]
        key = tuple(id(one) for one in own)
        window = self.windows.get(key)
        if window is None:
            window = self.windows[key] = self.make_window(own)
        if window.index == 0:
            window.size = size
        window.clip = clip
        return window

    def own(self, optimizer: Any) -> ManualOptimizer:
        """The optimizer of this run that was meant.

        Raises:
            OptimizerError: It is none of them.
        """
        for one in self.optimizers:
            if optimizer is one or optimizer is one.optimizer:
                return one
        raise OptimizerError(
            f"{type(optimizer).__name__} is not among the run's optimizers.",
            code="optimizer",
            do="Use one that self.optimizers() gives.",
        )

    def begin_micro_batch(self, samples: int) -> None:
        """`training_step` is called next. A rank without samples goes along with what it had last, and adds nothing."""
        self.samples, self.has_stepped = samples, False
        for optimizer in self.optimizers:
            optimizer.num_batches += 1
        for window in self.windows.values():
            window.is_idle = samples == 0

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Backward for all that needs gradients; nothing is sent."""
        for optimizer in self.optimizers:
            optimizer.has_backward = True
        (self.job.strategy.own_backward or Tensor.backward)(self.job.strategy.scaled(loss), *args, **kwargs)

    def make_step(self, window: ManualWindow, closure: Callable[[], Any] | None = None) -> bool:
        """Hooks, clipping and step, after the sync.

        Ranks: all.
        """
        self.has_stepped |= self.job.steps_apart
        if not isinstance(window.weight, Tensor) and window.weight == 0 and closure is None:
            return False
        for optimizer in window.optimizers:
            for hook in self.hooks.on_before_optimizer_step:
                hook(optimizer)
        self._is_stepping = True
        try:
            if closure is None:
                has_stepped = window.clip_and_step()
            else:
                has_stepped = window.strategy.step(window.optimizers, [closure])
        finally:
            self._is_stepping = False
        self.has_stepped |= has_stepped
        return has_stepped

    @property
    def is_between_steps(self) -> bool:
        """An optimizer has just stepped, and no window is half done."""
        return self.has_stepped and not any(window.index for window in self.windows.values())

    def flush(self) -> None:
        """At the end of an epoch: windows that are not full make their step.

        Ranks: all.
        """
        for window in self.windows.values():
            window.flush()

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """A step that would escape the sync, or the loss scaling, is refused."""
        if self.job.num_ranks == 1 and self.job.strategy.scaler is None:
            yield
            return
        handles = [one.register_step_pre_hook(self._refuse_bare_step) for one in self.job.optimizers]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _refuse_bare_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not self._is_stepping:
            raise WindowError(
                f"{type(optimizer).__name__}.step was called on the bare optimizer: its gradients are not synced.",
                code="bare-step",
                do="Step through self.optimizers(), or use self.window(optimizer).",
            )


class ManualOptimizer:
    """The user's optimizer; `step` syncs, once, what backward has left in the gradients of its parameters.

    It does not matter how they came there (`manual_backward`, `loss.backward()`), or in how many micro-batches.
    Everything else reaches the user's own object.

    Attributes:
        optimizer: The user's own.
        has_backward: `manual_backward` was called since the last step.
        num_batches: Micro-batches since the last step.
    """

    def __init__(self, run: ManualOptimization, window: ManualWindow) -> None:
        self.optimizer = window.optimizers[0]
        self.has_backward = False
        self.num_batches = 0
        self._run = run
        self._window = window
        self._is_synced = False

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Its parameters."""
        return self._window.parameters

    def sync(self) -> None:
        """Average the gradients over ranks, and undo the loss scaling; once, however often it is called before `step`.

        Ranks: all.

        Raises:
            WindowError: The gradients lack the loss scaling.
        """
        if self._is_synced:
            return
        window = self._window
        if window.strategy.scaler is not None and not self.has_backward:
            raise WindowError(
                "An optimizer was to step on gradients that no manual_backward has made: they lack the loss scale.",
                code="loss-scale",
                do="Use self.manual_backward(loss) instead of loss.backward() with precision='16-mixed'.",
            )
        # A mean over several micro-batches is of the user's own making: ranks count alike then.
        window.weight = self._run.samples if self.num_batches <= 1 else window.nominal
        multiply_gradients(window.parameters, window.weight / window.nominal)
        window.sync()
        self._is_synced = True

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Sync and step.

        Ranks: all.

        Args:
            closure: Makes gradients anew and returns the loss, as often as the optimizer asks for it.

        Returns:
            The closure's first loss, as torch's own do; without one, whether it stepped.
        """
        if closure is not None:
            return self._step_with(closure)
        self.sync()
        try:
            return self._run.make_step(self._window)
        finally:
            self._forget()

    def _step_with(self, closure: Callable[[], Any]) -> Any:
        if self._window.strategy.scaler is not None:
            raise ConfigError(
                "A closure makes gradients inside of the step, which the loss scaling cannot follow.",
                code="closure",
                do="Use another precision than '16-mixed' with this optimizer.",
            )
        losses: list[Any] = []

        def run() -> Any:
            self._is_synced = False
            losses.append(closure())
            self.sync()
            return losses[-1]

        self._run.make_step(self._window, run)
        self._forget()
        return losses[0]

    def _forget(self) -> None:
        self._is_synced = self.has_backward = False
        self.num_batches = 0
        self._window.weight = 0

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Zero the gradients."""
        for hook in self._run.hooks.on_before_zero_grad:
            hook(self.optimizer)
        self.optimizer.zero_grad(set_to_none=set_to_none)

    def __getattr__(self, name: str) -> Any:
        if "optimizer" not in self.__dict__:  # while it is copied
            raise AttributeError(name)
        return getattr(self.optimizer, name)


def _as_list(optimizers: Any) -> list[Any]:
    return list(optimizers) if isinstance(optimizers, (list, tuple)) else [optimizers]
