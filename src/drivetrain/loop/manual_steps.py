"""What a module uses in manual optimisation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import Tensor

from drivetrain.base.errors import ConfigError, NotOpenError
from drivetrain.fabric.window_job import Clip
from drivetrain.strategies.optimizer_names import parameters_of

if TYPE_CHECKING:
    from drivetrain.fabric.manual_window import ManualWindow


class ManualSteps:
    """Backward, windows, clipping and steps of one's own, inside of `training_step`.

    automatic_optimization = False

    def training_step(self, batch, batch_idx):
        discriminator, generator = self.optimizers()
        with self.window(discriminator) as window:
            window.backward(self.real_or_fake(batch))
        with self.window(generator, size=4) as window:
            window.backward(self.fooled(batch))
    """

    automatic_optimization: bool
    _trainer: Any
    fabric: Any
    _manual: Any = None
    _clipped: Any = None  # the optimizer for which `configure_gradient_clipping` runs

    def optimizers(self, use_pl_optimizer: bool = True) -> Any:
        """The run's optimizer, or a list of several. In manual optimisation each syncs its gradients when it steps."""
        if self._trainer is None:
            raise NotOpenError(
                f"{type(self).__name__}.optimizers was used outside of a run.",
                code="outside-run",
                do="It works inside of trainer.fit.",
            )
        optimizers = self._manual.optimizers if self._manual is not None else self._trainer.optimizers
        return optimizers[0] if len(optimizers) == 1 else list(optimizers)

    def window(
        self, optimizer: Any, *, size: int = 1, max_norm: float | None = None, max_value: float | None = None
    ) -> ManualWindow:
        """The window of one optimizer, or of several that step together: `with` it, one micro-batch runs.

        After `size` micro-batches, or at the end of the epoch, the gradients of the optimizer's parameters are synced
        once, brought to the weighted mean, clipped, and it steps. A loss may go through other optimizers' parameters:
        their gradients are not touched.

        Ranks: all.

        Args:
            optimizer: From `optimizers()`; or a list.
            size: Micro-batches of a window, on each rank.
            max_norm: Clip gradients to this global norm.
            max_value: Clip gradients to this value.
        """
        window: ManualWindow = self._manual_run("window").window(optimizer, size, Clip(max_norm, max_value))
        return window

    def manual_backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Run backward, with the loss scaled where the precision needs it. Syncing is left to the optimizer's step.

        In a raw loop it is `fabric.backward(loss)`, on one rank or under a strategy that syncs no gradients.

        Ranks: any (nothing is sent).

        Raises:
            ConfigError: In a raw loop on several ranks: a backward inside of a call of the wrapper escapes its sync.
        """
        if self._manual is None and self.fabric is not None:
            return self._backward_in_fabric(loss)
        self._manual_run("manual_backward").backward(loss, *args, **kwargs)

    def _backward_in_fabric(self, loss: Tensor) -> None:
        fabric = self.fabric
        if fabric.world_size > 1 and fabric.strategy.traits.syncs_gradients:
            raise ConfigError(
                f"{type(self).__name__}.manual_backward was called in a loop of your own on {fabric.world_size} ranks: "
                "inside of a step the wrapper would not sync its gradients.",
                code="manual-optimization",
                do="Return the loss, and call fabric.backward(loss) in the loop, or window.backward(loss).",
            )
        fabric.backward(loss)

    def clip_gradients(
        self, optimizer: Any, gradient_clip_val: float | None = None, gradient_clip_algorithm: str | None = None
    ) -> Tensor | None:
        """Sync and unscale the gradients of an optimizer, and clip them; also in `configure_gradient_clipping`.

        Ranks: all.

        Args:
            optimizer: From `optimizers()`.
            gradient_clip_val: The largest norm, or value. `None` or 0 clips nothing.
            gradient_clip_algorithm: `"norm"` (the default) or `"value"`.

        Returns:
            The norm before clipping; `None` if it was not taken.
        """
        if gradient_clip_algorithm not in (None, "norm", "value"):
            raise ConfigError(
                f"gradient_clip_algorithm={gradient_clip_algorithm!r}.", code="clip", do="Use 'norm' or 'value'."
            )
        own = self._manual_run("clip_gradients").own(optimizer) if self._clipped is None else None
        if not gradient_clip_val:
            return None
        if own is not None:
            own.sync()
        name = "max_value" if gradient_clip_algorithm == "value" else "max_norm"
        clip = self._trainer.strategy.clip_gradients
        norm: Tensor | None = clip(parameters_of(optimizer), **{name: gradient_clip_val})
        return norm

    def toggle_optimizer(self, optimizer: Any) -> None:
        """Only this optimizer's parameters need gradients until `untoggle_optimizer`."""
        run = self._manual_run("toggle_optimizer")
        own = {id(parameter) for parameter in run.own(optimizer).parameters}
        if not self.__dict__.get("_toggled"):
            self.__dict__["_toggled"] = [(p, p.requires_grad) for one in run.optimizers for p in one.parameters]
        for parameter, needed in self.__dict__["_toggled"]:
            parameter.requires_grad_(needed and id(parameter) in own)

    def untoggle_optimizer(self, optimizer: Any) -> None:
        """Parameters need gradients as they did before `toggle_optimizer`."""
        self._manual_run("untoggle_optimizer").own(optimizer)
        for parameter, needed in self.__dict__.pop("_toggled", []):
            parameter.requires_grad_(needed)

    @contextmanager
    def toggled_optimizer(self, optimizer: Any) -> Iterator[None]:
        """`toggle_optimizer` for a block."""
        self.toggle_optimizer(optimizer)
        try:
            yield
        finally:
            self.untoggle_optimizer(optimizer)

    def _manual_run(self, name: str) -> Any:
        if self._manual is None:
            raise ConfigError(
                f"{type(self).__name__}.{name} is for manual optimisation.",
                code="manual-optimization",
                do="Set self.automatic_optimization = False, and call it inside of training_step.",
            )
        return self._manual
