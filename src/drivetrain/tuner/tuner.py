"""The Tuner: searches before a training."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

from drivetrain.base.errors import ConfigError
from drivetrain.cluster.read_cluster import current_cluster
from drivetrain.fabric.compiled import make_compiler
from drivetrain.loop.data_module import DataModule
from drivetrain.loop.module import Module
from drivetrain.trainer.request import Request
from drivetrain.trainer.trainer import Trainer
from drivetrain.tuner.attribute import RATES, attribute_name, set_attribute
from drivetrain.tuner.batch_size import SizeSearch, find_batch_size
from drivetrain.tuner.lr_find import LRFindResult, Sweep, find_lr
from drivetrain.tuner.trial import check_steps


class Tuner:
    """Looks for a learning rate or a batch size by short runs.

    They run on copies: the module, the optimizers, the random state, counters, loggers and checkpoints are what they
    were. Callbacks do not run. On several ranks all of them get the same result.

    Args:
        trainer: Whose devices, strategy, precision and windows the runs have.

    Example:
        found = Tuner(trainer).lr_find(model, loader)
        model.learning_rate = found.suggestion()
        trainer.fit(model, loader)
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    def lr_find(
        self,
        model: Module,
        train_dataloaders: Any = None,
        val_dataloaders: Any = None,
        dataloaders: Any = None,
        datamodule: DataModule | None = None,
        method: str = "fit",
        min_lr: float = 1e-8,
        max_lr: float = 1.0,
        num_training: int = 100,
        mode: str = "exponential",
        early_stop_threshold: float | None = 4.0,
        update_attr: bool = False,
        attr_name: str = "",
    ) -> LRFindResult | None:
        """Train a copy for some steps while the learning rate grows, and note the loss of each.

        Ranks: all. Ranks that are not there yet are started.

        Args:
            model: The module; it has one optimizer.
            train_dataloaders: Its loader, or a datamodule.
            val_dataloaders: Not used.
            dataloaders: Not used: for other stages.
            datamodule: Instead of a loader.
            method: `"fit"`.
            min_lr: The first learning rate.
            max_lr: The last one.
            num_training: Optimizer steps.
            mode: The rate grows by a factor (`"exponential"`) or by a difference (`"linear"`).
            early_stop_threshold: End where the smoothed loss is so many times the best one; `None` for never.
            update_attr: Set the suggestion as the module's attribute.
            attr_name: Its name; by default `lr` or `learning_rate`.

        Returns:
            The losses, with `suggestion()` and `plot()`; `None` under `fast_dev_run`.
        """
        sweep = Sweep(min_lr, max_lr, num_training, mode, early_stop_threshold)
        name = attribute_name(model, attr_name, RATES) if update_attr else ""
        request = self._request("lr_find", method, model, train_dataloaders or dataloaders, datamodule)
        if request is None:
            return None
        request = dataclasses.replace(request, compiler=make_compiler(self._trainer.compile))
        result: LRFindResult = self._start(find_lr, request, sweep)
        suggestion = result.suggestion() if update_attr else None
        if suggestion is not None:
            set_attribute(model, name, suggestion)
        return result

    def scale_batch_size(
        self,
        model: Module,
        train_dataloaders: Any = None,
        val_dataloaders: Any = None,
        dataloaders: Any = None,
        datamodule: DataModule | None = None,
        method: str = "fit",
        mode: str = "power",
        steps_per_trial: int = 3,
        init_val: int = 2,
        max_trials: int = 25,
        batch_arg_name: str = "batch_size",
        *,
        update_attr: bool = False,
        probe: Callable[[int], None] | None = None,
    ) -> int | None:
        """The most samples of a micro-batch, on each rank, that fit into memory.

        The loader's samples are cut anew for each trial: it needs no attribute that is changed. While training,
        `Trainer(global_batch_size=..., micro_batch_size="auto")` finds the size by itself, with the same steps.

        Ranks: all. Ranks that are not there yet are started.

        Args:
            model: The module.
            train_dataloaders: Its loader, or a datamodule.
            val_dataloaders: Not used.
            dataloaders: Not used: for other stages.
            datamodule: Instead of a loader.
            method: `"fit"`.
            mode: `"power"` doubles until a size does not fit; `"binsearch"` goes on between the last two.
            steps_per_trial: Optimizer steps with each size.
            init_val: The first size.
            max_trials: Sizes tried at most.
            batch_arg_name: The attribute that `update_attr` sets.
            update_attr: Set the result on the datamodule or the module.
            probe: Called with the number of samples before each micro-batch; may raise an out-of-memory error. Stands
                in for a device's memory.

        Returns:
            The size, not above the samples that there are; `None` under `fast_dev_run`.

        Raises:
            OutOfMemoryError: On every rank, if not even one sample fits.
        """
        search = SizeSearch(mode, steps_per_trial, init_val, max_trials, probe)
        owner = datamodule or (train_dataloaders if isinstance(train_dataloaders, DataModule) else None) or model
        if update_attr:
            attribute_name(owner, batch_arg_name)
        request = self._request("scale_batch_size", method, model, train_dataloaders or dataloaders, datamodule)
        if request is None:
            return None
        size, self.tried = self._start(find_batch_size, request, search)
        if update_attr:
            set_attribute(owner, batch_arg_name, size)
        return int(size)

    def _start(self, function: Callable[..., Any], *args: Any) -> Any:
        trainer = self._trainer
        with trainer._global_switches():
            return trainer._fabric.start(function, trainer, *args)

    def _request(self, name: str, method: str, model: Module, loaders: Any, datamodule: Any) -> Request | None:
        if method != "fit":
            raise ConfigError(f"{name} got method={method!r}.", code="tuner-method", do="Use 'fit'.")
        if isinstance(loaders, DataModule):
            loaders, datamodule = None, loaders
        is_elsewhere = self._trainer._fabric.plan.needs_launch(current_cluster())
        request = Request("fit", model, loaders, None, datamodule, is_elsewhere=is_elsewhere)
        request.check()
        check_steps(name, model)
        if self._trainer.fast_dev_run:
            warnings.warn(f"{name} does nothing under fast_dev_run.", stacklevel=3)
            return None
        return request
