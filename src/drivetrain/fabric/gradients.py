"""What a raw loop does with gradients: backward, windows, sync, clipping."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from drivetrain.base.errors import ConfigError, ModelError
from drivetrain.data.loader import Loader
from drivetrain.fabric.batch_plan import say_plan
from drivetrain.fabric.fabric_module import FabricModule
from drivetrain.fabric.fabric_optimizer import FabricOptimizer, modules_of
from drivetrain.fabric.loaders import make_loader
from drivetrain.fabric.manual_window import ManualWindow
from drivetrain.fabric.ranks import Ranks
from drivetrain.fabric.window_job import Clip, WindowJob
from drivetrain.fabric.windows import Windows
from drivetrain.strategies.optimizer_names import parameters_of
from drivetrain.strategies.prepared import Prepared


class Gradients(Ranks):
    """Backward, windows, sync and clipping of the modules that were set up."""

    _modules: list[FabricModule]

    def windows(
        self,
        loader: Loader,
        modules: FabricModule | Sequence[FabricModule],
        optimizers: Optimizer | Sequence[Optimizer],
        *,
        size: int | Callable[[int], int] | None = None,
        max_norm: float | None = None,
        max_value: float | None = None,
        uneven: str = "join",
        remainder: str = "step",
        nonfinite: str = "ignore",
        limit: int | None = None,
    ) -> Windows:
        """One epoch of a loader, cut into windows: one optimizer step, and one gradient sync, for each.

        Each window hands out its micro-batches; call `window.backward(loss)` for each. After the last one the gradients
        are brought to the mean over all that was really accumulated on all ranks, clipped, and the optimizers step.

        Ranks: all.

        Args:
            loader: From `setup_dataloaders`.
            modules: From `setup`; all whose gradients belong to the step.
            optimizers: They step at the end of each window.
            size: Micro-batches of a window on each rank, or a function of the steps done; by default 1, or what makes
                up the loader's global batch. The last window of an epoch may be shorter; it is scaled by what it holds.
            max_norm: Clip gradients to this global norm.
            max_value: Clip gradients to this value.
            uneven: When ranks hold different numbers of batches: `"join"` (each sample counts once), `"stop"` (all stop
                with the first) or `"error"`.
            remainder: Micro-batches that do not fill the last window of the epoch: `"step"` (with the right scale),
                `"drop"`, or `"carry"`: iterate over the same `Windows` again for the next epoch.
            nonfinite: A loss or gradient that is inf or nan: `"ignore"`, `"skip"` the step, or `"error"`.
            limit: Use at most this many micro-batches.
        """
        strategy = self._running
        if not isinstance(loader, Loader):
            loader = make_loader(
                loader, strategy, seed=0, training=True, is_moved=False, is_sharded_here=False, uneven=uneven
            )
        if size is None:
            size = loader.plan.num_rounds if loader.plan is not None else 1
        elif loader.plan is not None:
            raise ConfigError(
                f"size={size!r} was given for a loader whose windows are made of global batches.",
                code="batch-split",
                do="Leave size out, or set the loader up without global_batch_size.",
            )
        get_size = size if callable(size) else (lambda _step: size)
        if not callable(size) and (not isinstance(size, int) or size < 1):
            raise ConfigError(
                f"size={size!r} is not a number of micro-batches.", code="window-size", do="Use 1 or more."
            )
        job = WindowJob(
            strategy,
            self._prepared(modules),
            _own(optimizers),
            get_size,
            Clip(max_norm, max_value),
            uneven,
            remainder,
            nonfinite,
            wants_stop=self.stop_signals.is_noted,
            wants_end=self.stop_signals.is_noted,
            finder=loader.finder,
        )
        say_plan(loader, job)
        return Windows(job, loader, limit=limit)

    def window(
        self, optimizers: Any, *, size: int = 1, max_norm: float | None = None, max_value: float | None = None
    ) -> ManualWindow:
        """A window of your own blocks, for several optimizers that each step at their own pace (a GAN, for example).

            with window:
                window.backward(loss, weight=len(batch))

        Every `size` blocks the gradients of the optimizers' parameters are synced once, brought to the weighted mean,
        clipped, and the optimizers step. A loss may go through other models: their gradients are not touched.

        Ranks: all.

        Args:
            optimizers: One or several, which step together.
            size: Blocks of a window, on each rank.
            max_norm: Clip gradients to this global norm.
            max_value: Clip gradients to this value.
        """
        own, prepared = _own(optimizers), [module.prepared for module in self._modules]
        return ManualWindow(
            self._running, prepared, own, size=size, clip=Clip(max_norm, max_value), ends=modules_of(own, prepared)
        )

    def backward(self, loss: Tensor, model: FabricModule | None = None) -> None:
        """Run backward through what owns the sync, and scale the loss where the precision needs it.

        Ranks: all while gradient sync is on.

        Args:
            loss: 0-dim.
            model: The module that made it; needed only where several were set up, to check that its sync is complete.
        """
        strategy = self._running
        if model is None and len(self._modules) == 1:
            model = self._modules[0]
        strategy.backward(loss, model.prepared if model is not None else None)

    def no_backward_sync(
        self, module: FabricModule | Sequence[FabricModule], enabled: bool = True
    ) -> AbstractContextManager[None]:
        """Keep gradients on this rank for a block around forward and backward; not in the last micro-batch.

        The state found is restored at the end. `enabled=False` changes nothing.

        Ranks: all, with the same value.

        Raises:
            ModelError: The module was not set up.
        """
        prepared = self._prepared(module)
        return self._running.gradient_sync(prepared, False) if enabled else nullcontext()

    def clip_gradients(
        self,
        module: FabricModule,
        optimizer: Optimizer | FabricOptimizer | None = None,
        clip_val: float | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = True,
    ) -> Tensor | None:
        """Clip the true gradients: unscaled, after the sync.

        Ranks: all.

        Args:
            module: From `setup`.
            optimizer: Clip its parameters only.
            clip_val: Clamp to this value.
            max_norm: Scale to at most this global norm.
            norm_type: Which norm.
            error_if_nonfinite: An inf or nan norm is an error.

        Returns:
            The norm before clipping, or `None` for `clip_val`.
        """
        strategy = self._running
        (prepared,) = self._prepared(module)
        parameters: list[nn.Parameter] = list(prepared.parameters)
        if optimizer is not None:
            parameters = parameters_of(*_own(optimizer))
        if isinstance(optimizer, FabricOptimizer):
            optimizer.unscale()
        elif strategy.scaler is not None:
            raise ConfigError(
                "clip_gradients got no optimizer, so that the scaled gradients would be clipped.",
                code="clip",
                do="Pass the optimizer that fabric.setup() returned.",
            )
        return strategy.clip_gradients(
            parameters,
            max_norm=max_norm,
            max_value=clip_val,
            norm_type=norm_type,
            error_if_nonfinite=error_if_nonfinite,
        )

    def _prepared(self, modules: Any) -> list[Prepared]:
        listed = list(modules) if isinstance(modules, (list, tuple)) else [modules]
        for module in listed:
            if not isinstance(module, FabricModule):
                raise ModelError(
                    f"{type(module).__name__} was not set up, so nothing knows how its gradients are synced.",
                    code="not-set-up",
                    do="Pass what fabric.setup() returned.",
                )
        return [module.prepared for module in listed]


def _own(optimizers: Any) -> list[Optimizer]:
    """The user's own optimizers, of one or several that may be wrapped."""
    listed: list[Any] = list(optimizers) if isinstance(optimizers, (list, tuple)) else [optimizers]
    return [one.optimizer if isinstance(one, FabricOptimizer) else one for one in listed]
