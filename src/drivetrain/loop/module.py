"""The module protocol: a model with its steps, optimizers and hooks."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import torch
from torch import nn

from drivetrain.base.errors import LoggingError, NotOpenError
from drivetrain.base.locations import locate
from drivetrain.checkpoint.remote import downloaded
from drivetrain.checkpoint.verify import require_valid
from drivetrain.comm.gradient_gather import gather_with_gradients
from drivetrain.fabric.fabric_module import KnowsFabric
from drivetrain.loop.hyper_parameters import HyperParameters
from drivetrain.loop.manual_steps import ManualSteps
from drivetrain.loop.module_hooks import ModuleHooks
from drivetrain.loop.shown_checkpoint import LEFT_OUT, MODEL, completed, read_unverified, shown, take_model
from drivetrain.strategies.replicated_state import load_module
from drivetrain.strategies.saved_state import part_of, whole_tensors


class Module(HyperParameters, ManualSteps, ModuleHooks, KnowsFabric, nn.Module):
    """A model that says how it is trained.

    Write `training_step` and `configure_optimizers`; add `validation_step`, `test_step`, `predict_step` and hooks as
    needed. `trainer` and everything behind it exists for the duration of a run.

    Attributes:
        automatic_optimization: The loop runs backward, clips and steps. False leaves it to `training_step`, with
            `optimizers`, `window`, `manual_backward`, `clip_gradients` and `toggle_optimizer`.
        example_input_array: An input with which loggers may trace the model.
        strict_loading: Names that a checkpoint lacks, or that the module does not have, are an error. False leaves what
            is missing as it was built, and says so.
    """

    automatic_optimization: bool = True
    example_input_array: Any = None
    strict_loading: bool = True
    _trainer: Any = None
    _metrics: Any = None
    _ranks: tuple[int, int] = (0, 0)

    # ---------------------------------------------------------------- steps

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """The loss of one micro-batch: `training_step(batch, batch_idx)`, or of the batch alone.

        Returns:
            The mean loss, 0-dim; or `{"loss": mean, "weight": units}` where the loss is a mean over tokens or anything
            else than the micro-batch's samples; or `None` to add nothing.
        """
        raise NotImplementedError

    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate one batch: `validation_step(batch, batch_idx, dataloader_idx=0)`; usually calls `self.log`."""

    def test_step(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate one batch: `test_step(batch, batch_idx, dataloader_idx=0)`; usually calls `self.log`."""

    def predict_step(self, *args: Any, **kwargs: Any) -> Any:
        """The prediction of one batch: `predict_step(batch, batch_idx, dataloader_idx=0)`; by default `self(batch)`."""
        batch = kwargs["batch"] if "batch" in kwargs else args[0]
        return self(batch)

    def configure_optimizers(self) -> Any:
        """Optimizers and schedulers, once in each fit: the module is on its device, nothing is loaded yet.

        One optimizer; several; `{"optimizer": ..., "lr_scheduler": ...}`; or two lists, optimizers and schedulers.
        A scheduler may be given as `{"scheduler": ..., "interval": "step" | "epoch", "frequency": 1, "monitor": ...}`.
        `"step"` means optimizer step; `"micro-batch"`, `"sample"` and `"250 steps"` are intervals too.
        """
        return None

    # ---------------------------------------------------------------- logging

    def log(
        self,
        name: str,
        value: Any,
        prog_bar: bool = False,
        logger: bool | None = None,
        on_step: bool | None = None,
        on_epoch: bool | None = None,
        reduce_fx: Any = "mean",
        sync_dist: bool = True,
        batch_size: int | None = None,
        add_dataloader_idx: bool = True,
        rank_zero_only: bool = False,
    ) -> None:
        """Log a value. It stays on the device, detached, until it is shown or written.

        What is reported is the mean over micro-batches and ranks, weighted by what the loss is a mean over (the step's
        `weight`, else the samples), unless `reduce_fx` says otherwise.

        In a raw loop (`fabric.setup(module)`) it is written to the fabric's loggers at once: rank 0's own value, with a
        read from the device, and no mean over anything.

        Args:
            name: Under which it is reported.
            value: A number, a tensor of one element, or an object with `update`, `compute` and `reset`.
            prog_bar: Show it in the progress bar.
            logger: Write it to the loggers; by default yes.
            on_step: Report the value of each optimizer step, where rows are written; the default in `training_step`.
            on_epoch: Report the value over the whole epoch; the default everywhere else.
            reduce_fx: `"mean"`, `"sum"`, `"min"` or `"max"`, over micro-batches and ranks.
            sync_dist: Reduce over ranks when it is reported. False reports rank 0's own value.
            batch_size: The weight of this value, instead of the micro-batch's.
            add_dataloader_idx: With several evaluation loaders, add the loader's number to the name.
            rank_zero_only: Only rank 0 logs it; the same as `sync_dist=False`.
        """
        if self._metrics is None:
            return self._log_in_fabric({name: value}, logger)
        self._metrics.log(
            name, value, prog_bar, True if logger is None else logger, on_step, on_epoch, reduce_fx,
            sync_dist and not rank_zero_only, batch_size, add_dataloader_idx,
        )  # fmt: skip

    def log_dict(self, dictionary: Mapping[str, Any], **options: Any) -> None:
        """Log several values with the same options; see `log`. In a raw loop they are one row."""
        if self._metrics is None:
            call = inspect.signature(self.log).bind("", 0, **options)  # so that an unknown option is an error
            return self._log_in_fabric(dictionary, call.arguments.get("logger"))
        for name, value in dictionary.items():
            self.log(name, value, **options)

    def _log_in_fabric(self, values: Mapping[str, Any], is_written: bool | None) -> None:
        if self.fabric is None:
            raise _outside(type(self).__name__, "log")
        for name, value in values.items():
            if not (value.numel() == 1 if isinstance(value, torch.Tensor) else hasattr(value, "__float__")):
                raise LoggingError(
                    f"log({name!r}) got a {type(value).__name__}, in a loop of your own.",
                    code="log-value",
                    do="Log a number or a tensor of one element there; of a metric object its compute().",
                )
        if is_written is None or is_written:
            self.fabric.log_dict(values)

    # ---------------------------------------------------------------- the run

    @property
    def fabric(self) -> Any:
        """The fabric that has set the module up, for a raw loop; `None` without one, and in a run of a trainer."""
        return self._fabric if self._trainer is None else None

    @property
    def _host(self) -> Any:
        return self._trainer if self._trainer is not None else self._fabric

    @property
    def trainer(self) -> Any:
        """The trainer, for the duration of a run.

        Raises:
            NotOpenError: Outside of one.
        """
        if self._trainer is None:
            raise _outside(type(self).__name__, "trainer")
        return self._trainer

    @property
    def current_epoch(self) -> int:
        """Epochs completed, 0 outside of a run."""
        return self._trainer.current_epoch if self._trainer is not None else 0

    @property
    def global_step(self) -> int:
        """Optimizer steps done, 0 outside of a run."""
        return self._trainer.global_step if self._trainer is not None else 0

    @property
    def global_rank(self) -> int:
        """This rank; outside of a run that of the last one, 0 without one."""
        return self._host.global_rank if self._host is not None else self._ranks[0]

    @property
    def local_rank(self) -> int:
        """This rank among those of its machine; outside of a run that of the last one, 0 without one."""
        return self._host.local_rank if self._host is not None else self._ranks[1]

    @property
    def logger(self) -> Any:
        """The first logger, or `None`."""
        return self._host.logger if self._host is not None else None

    @property
    def loggers(self) -> list[Any]:
        """All loggers."""
        return self._host.loggers if self._host is not None else []

    @property
    def device(self) -> torch.device:
        """Where the module's first parameter or buffer is, or computes, if it is offloaded in a run."""
        for tensor in (*self.parameters(), *self.buffers()):
            mesh = getattr(tensor, "device_mesh", None)  # of a DTensor
            if mesh is not None and mesh.device_type != tensor.device.type and self._host is not None:
                return torch.device(self._host.device)
            return tensor.device
        return torch.device("cpu")

    @property
    def device_mesh(self) -> Any:
        """torch's `DeviceMesh` over which the run's strategy shards; `None` outside of a run, and where it does not."""
        return self._host.strategy.device_mesh if self._host is not None else None

    @property
    def dtype(self) -> torch.dtype:
        """The first floating parameter's dtype."""
        for parameter in self.parameters():
            if parameter.is_floating_point():
                return parameter.dtype
        return torch.get_default_dtype()

    def lr_schedulers(self) -> Any:
        """The run's scheduler, a list of several, or `None`."""
        schedulers = [config.scheduler for config in self.trainer.lr_scheduler_configs]
        return schedulers[0] if len(schedulers) == 1 else (schedulers or None)

    def all_gather(self, data: Any, *, sync_grads: bool = False) -> Any:
        """Stack tensors of all ranks along a new first dim.

        Ranks: all.

        Args:
            data: A tensor, a number, or a nested structure of them.
            sync_grads: Gradients go back to the rank that a part is of: the sum of those that all ranks have for it.
        """
        collectives = (self.fabric or self.trainer).collectives
        return gather_with_gradients(collectives, data) if sync_grads else collectives.all_gather(data)

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print on rank 0 alone."""
        if self.global_rank == 0:
            print(*args, **kwargs)

    def freeze(self) -> None:
        """No parameter needs gradients any more, and the module is in eval mode."""
        self.requires_grad_(False)
        self.eval()

    def unfreeze(self) -> None:
        """All parameters need gradients, and the module is in train mode."""
        self.requires_grad_(True)
        self.train()

    # ---------------------------------------------------------------- state

    @classmethod
    def load_from_checkpoint(
        cls, checkpoint_path: str | Path, map_location: Any = "cpu", strict: bool | None = None, **kwargs: Any
    ) -> Self:
        """Build the module from the hyperparameters of a checkpoint, and load its weights after `on_load_checkpoint`.

        Args:
            checkpoint_path: A checkpoint directory or URL, whatever strategy wrote it.
            map_location: Where its tensors go.
            strict: Missing and unexpected names are an error, but for those that were left out of it when it was saved;
                by default the module's `strict_loading`.
            kwargs: Constructor arguments, instead of those that were saved.

        Raises:
            CheckpointError: It is not a checkpoint, cannot be trusted, or does not fit.
        """
        with downloaded(locate(checkpoint_path)) as directory:
            require_valid(directory)
            saved = read_unverified(directory)
            part_of(directory, saved, MODEL)
            checkpoint = shown(saved, saved.get("trainer", {}))
            hyper_parameters = checkpoint.setdefault("hyper_parameters", {})
            hyper_parameters.update(kwargs)
            module = cls(**hyper_parameters)
            if "trainer" in saved:
                module.on_load_checkpoint(checkpoint)
            model = take_model(checkpoint, "on_load_checkpoint")
            strict, name = module.strict_loading if strict is None else strict, f"model of {checkpoint_path}"
            weights = completed(model, module, checkpoint.get(LEFT_OUT, ()), name=name, strict=strict)
            load_module(module, whole_tensors(directory, weights), strict=strict, name=name)
        module.to(map_location if isinstance(map_location, (str, torch.device)) else "cpu")
        return module

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        state.pop("_trainer", None)
        state.pop("_fabric", None)
        state.pop("_metrics", None)
        state.pop("_manual", None)
        state.pop("_ranks", None)
        state.pop("_compiled_call_impl", None)  # as torch's own does: it is of this object
        return state


def _outside(kind: str, name: str) -> NotOpenError:
    return NotOpenError(
        f"{kind}.{name} was used outside of a run.",
        code="outside-run",
        do="It works inside of trainer.fit, validate, test and predict; self.fabric of a module that fabric.setup "
        "has set up is for loops of your own.",
    )
