"""The search for a batch size, as a callback."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from drivetrain.base.errors import ConfigError
from drivetrain.loop.callback import Callback
from drivetrain.trainer.reloading import reload_loaders
from drivetrain.tuner.attribute import attribute_name, set_attribute
from drivetrain.tuner.batch_size import SizeSearch, find_batch_size
from drivetrain.tuner.inner_search import search_inside

_log = logging.getLogger("drivetrain.tuner")


class BatchSizeFinder(Callback):
    """Looks for the largest batch size that fits into memory at the start of `fit`, and trains with it.

    The search is that of `Tuner.scale_batch_size`, after which everything is what it was. Then the attribute of the
    data module or module is set, and its loaders are made again. A run that goes on from a checkpoint has the size of
    the checkpoint, and does not search. The optimizer step depends on what was found: where it should not,
    `Trainer(global_batch_size=..., micro_batch_size="auto")` finds a size and keeps the step.

    For searches of your own call `scale_batch_size`, from `on_train_epoch_start`, and override `on_fit_start`.

    Args:
        mode: `"power"` doubles until a size does not fit; `"binsearch"` goes on between the last two.
        steps_per_trial: Optimizer steps with each size.
        init_val: The first size.
        max_trials: Sizes tried at most.
        batch_arg_name: The attribute of the data module or module from which its loaders take their size.
        probe: Called with the number of samples before each micro-batch; may raise an out-of-memory error. Stands in
            for a device's memory.

    Attributes:
        optimal_batch_size: What was found last.
    """

    def __init__(
        self,
        mode: str = "power",
        steps_per_trial: int = 3,
        init_val: int = 2,
        max_trials: int = 25,
        batch_arg_name: str = "batch_size",
        *,
        probe: Callable[[int], None] | None = None,
    ) -> None:
        self._options = (mode, steps_per_trial, init_val, max_trials, probe)
        self._search()
        self._name = batch_arg_name
        self.optimal_batch_size: int | None = None

    def on_before_load(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Have the loaders of the run that was saved.

        Ranks: all.
        """
        size = checkpoint["callbacks"].get(self.state_key, {}).get("size")
        if size is not None:
            self._use(trainer, pl_module, size)

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Search, unless the run goes on.

        Ranks: all.
        """
        if not trainer.run.resumed_from:
            self.scale_batch_size(trainer, pl_module)

    def scale_batch_size(self, trainer: Any, pl_module: Any) -> None:
        """Search, and go on with what was found.

        Ranks: all, before training or between two epochs.
        """
        self._owner(trainer, pl_module)
        kind = type(self).__name__
        found = search_inside(kind, trainer, pl_module, find_batch_size, self._search(), compiles=False)
        if found is None:
            return
        self._use(trainer, pl_module, int(found[0]))
        if trainer.is_global_zero:
            _log.info("%s: %s = %d.", kind, self._name, self.optimal_batch_size)

    def state_dict(self) -> dict[str, Any]:
        """What was found."""
        return {} if self.optimal_batch_size is None else {"size": self.optimal_batch_size}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore it."""
        self.optimal_batch_size = state_dict["size"]

    def _search(self) -> SizeSearch:
        return SizeSearch(*self._options)

    def _use(self, trainer: Any, pl_module: Any, size: int) -> None:
        self.optimal_batch_size = size
        set_attribute(self._owner(trainer, pl_module), self._name, size)
        reload_loaders(trainer.run)

    def _owner(self, trainer: Any, pl_module: Any) -> Any:
        """Who makes the training loader, and has the attribute."""
        if trainer.run.request.loaders is not None:
            raise ConfigError(
                f"{type(self).__name__} sets {self._name} where loaders are made; fit was given its loader.",
                code="tuner-attribute",
                do='Define train_dataloader on the module or data module; or use micro_batch_size="auto".',
            )
        owner = trainer.datamodule if trainer.datamodule is not None else pl_module
        attribute_name(owner, self._name)
        return owner
