"""Averages of the weights along a run, and evaluation with them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, nn

from drivetrain.base.errors import ConfigError
from drivetrain.base.interval import Interval
from drivetrain.callbacks.shared_interval import SharedInterval
from drivetrain.loop.callback import Callback

_NARROW = (torch.float16, torch.bfloat16)  # a small part of a change is lost in them


class WeightAveraging(Callback):
    """Keeps an average of the weights beside those that are trained, and evaluates and saves with it.

    It is updated after optimizer steps, never after micro-batches, and not after a step that was skipped; the first
    update takes the weights as they are. From then on the average is in the module while it is validated, tested or
    used for predictions, and is the model of each checkpoint; the weights that are trained are put back afterwards,
    also after an exception. When training has ended the average stays in the module. A resumed run goes on with both.

    The average is kept on the module's device, in at least float32; where parameters are sharded, so is it. While it is
    in the module, the weights that are trained are kept beside it: memory for a second copy.

    Args:
        decay: Weight of the average against the new value: a number, or a function of the updates done. Without it and
            `avg_fn` all updates count alike.
        avg_fn: Gives the new average from `(average, value, num_updates)`, of one tensor.
        update_every: Between two updates: an interval such as `"10 steps"` or `"1 epoch"`.
        update_starting_at_step: No update before so many optimizer steps.
        update_starting_at_epoch: No update in the first so many epochs.
        use_buffers: Average floating-point buffers too; otherwise evaluation uses those of the training, as they are.
        use_in_evaluation: Only keep the average if False: see `averaged`.

    Attributes:
        num_updates: So far.

    Raises:
        ConfigError: Arguments that do not fit.
    """

    def __init__(
        self,
        decay: float | Callable[[int], float] | None = None,
        avg_fn: Callable[[Tensor, Tensor, int], Tensor] | None = None,
        update_every: str | timedelta | Interval = "1 step",
        *,
        update_starting_at_step: int = 0,
        update_starting_at_epoch: int = 0,
        use_buffers: bool = False,
        use_in_evaluation: bool = True,
    ) -> None:
        is_number = isinstance(decay, (int, float))
        if (decay is not None and avg_fn is not None) or (is_number and not 0 <= decay < 1):  # type: ignore[operator]
            raise ConfigError(
                f"{type(self).__name__} got decay={decay!r}{' and avg_fn' if avg_fn is not None else ''}.",
                code="weight-averaging",
                do="Give a decay from 0 to below 1, or avg_fn instead.",
            )
        self.decay, self.avg_fn = decay, avg_fn
        self._interval = SharedInterval(Interval.parse(update_every, name="update_every"))
        self.update_starting_at_step, self.update_starting_at_epoch = update_starting_at_step, update_starting_at_epoch
        self.use_buffers, self.use_in_evaluation = use_buffers, use_in_evaluation
        self.num_updates = 0
        self._average: dict[str, Tensor] = {}
        self._training: dict[str, Tensor] = {}  # what is trained, while the average is in the module
        self._loaded: dict[str, Any] | None = None  # until the module is there
        self._step = 0
        self._has_changed = self._is_lent = False

    @property
    def replaces_weights(self) -> bool:
        """At some time the average is in the module."""
        return self.use_in_evaluation

    def should_update(self, trainer: Any) -> bool:
        """Whether an update that is due is made; override it for another beginning. Alike on all ranks."""
        is_late = trainer.global_step >= self.update_starting_at_step
        return bool(is_late and trainer.current_epoch >= self.update_starting_at_epoch)

    # ---------------------------------------------------------------- state

    @property
    def state_key(self) -> str:
        """Tells averages apart by how they are made."""
        made_by = getattr(self.avg_fn or self.decay, "__qualname__", self.decay)
        return f"{type(self).__qualname__}(decay={made_by}, update_every={self._interval.interval})"

    def state_dict(self) -> dict[str, Any]:
        """The average, and the weights that are trained; of either what is not in the module. All ranks."""
        if self._loaded is not None:
            return self._loaded
        if not self.num_updates:
            return {}
        average, training = self._average, self._training
        return {
            "num_updates": self.num_updates,
            "step": self._step,
            "has_changed": self._has_changed,
            "average": {k: v for k, v in average.items() if k not in training or training[k].dtype != v.dtype},
            "training": dict(training),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep it until the module is there. All ranks."""
        self._forget()
        self._loaded = state_dict
        self.num_updates = state_dict["num_updates"]

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """An average of other weights has nothing to do with those that were loaded."""
        self._forget()

    def _forget(self) -> None:
        self._average, self._training, self._loaded = {}, {}, None
        self.num_updates, self._has_changed, self._is_lent = 0, False, False

    def _take_loaded(self, module: nn.Module) -> None:
        """Put a loaded state where the module is, in the shards in which it is held."""
        loaded, self._loaded = self._loaded, None
        if loaded is None:
            return
        self._step, self._has_changed = loaded["step"], loaded["has_changed"]
        self._average = {name: torch.empty(0) for name in {**loaded["average"], **loaded["training"]}}  # for `_tensors`
        tensors = self._tensors(module)
        if tensors.keys() != self._average.keys():
            raise ConfigError(
                f"The average that was loaded is of other tensors than {type(module).__name__} has: they differ in "
                f"{', '.join(sorted(tensors.keys() ^ self._average.keys())[:5])}.",
                code="weight-averaging",
                do="Build the module as it was saved.",
            )
        saved, self._training = loaded["average"], {}
        self._average = {k: _like(saved[k], v, _wide(v)) if k in saved else _copy(v) for k, v in tensors.items()}
        self._training = {k: _like(v, tensors[k], tensors[k].dtype) for k, v in loaded["training"].items()}

    # ---------------------------------------------------------------- training

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Refuse what cannot be averaged.

        Raises:
            ConfigError: Two callbacks would replace the weights, or ranks hold different ones.
        """
        rivals = [one for one in trainer.callbacks if isinstance(one, WeightAveraging) and one.replaces_weights]
        if len(rivals) > 1:
            raise ConfigError(
                f"{' and '.join(one.state_key for one in rivals)} would both put their average into the module.",
                code="weight-averaging",
                do="Pass use_in_evaluation=False to all but one.",
            )
        if stage == "fit" and trainer.strategy.traits.steps_apart and trainer.world_size > 1:
            raise ConfigError(
                f"{type(self).__name__} with {type(trainer.strategy).__name__}: between two syncs each rank would "
                "average weights of its own.",
                code="weight-averaging",
                do="Use a strategy that syncs gradients, such as 'ddp'.",
            )

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Go on with the average of this run; forget one of another."""
        is_loaded = self._loaded is not None  # maybe before the step that the run has counted already
        self._take_loaded(pl_module)
        if (self._step != trainer.global_step and not is_loaded) or self._tensors(
            pl_module
        ).keys() != self._average.keys():
            self._forget()
        if self._training and not self._is_in(pl_module):
            warnings.warn(
                "The module was changed since its weights were averaged: the average begins anew.", stacklevel=2
            )
            self._forget()
        self._put_back(pl_module)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to count.

        Raises:
            ConfigError: A part of an epoch was asked for, and epochs have no length that is known.
        """
        self._interval.start(trainer, self)

    def on_step_end(self, trainer: Any, pl_module: Any) -> None:
        """Update the average, if it is time to.

        Ranks: all.
        """
        self._step = trainer.global_step
        self._has_changed = self._has_changed or trainer.has_stepped
        self._look(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Look again, where the end of the epoch was no step."""
        if self._interval.interval.unit == "epoch":
            self._look(trainer, pl_module)

    def _look(self, trainer: Any, module: nn.Module) -> None:
        if self._interval.is_over(trainer) and self._has_changed and self.should_update(trainer):
            self.update(module)

    @torch.no_grad()
    def update(self, module: nn.Module) -> None:
        """Take the module's weights into the average.

        Ranks: any; nothing is sent.
        """
        tensors = self._tensors(module)
        if not self.num_updates:
            self._average = {name: _copy(tensor) for name, tensor in tensors.items()}
        elif self.avg_fn is not None:
            for name, average in self._average.items():
                average.copy_(self.avg_fn(average, tensors[name], self.num_updates))
        else:
            share = 1 - self._decay() if self.decay is not None else 1 / (self.num_updates + 1)
            values = [tensors[name].to(average.dtype) for name, average in self._average.items()]
            torch._foreach_lerp_(list(self._average.values()), values, share)
        self.num_updates += 1
        self._has_changed = False

    def _decay(self) -> float:
        return self.decay(self.num_updates) if callable(self.decay) else float(self.decay or 0)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Leave the average in the module."""
        if self.replaces_weights:
            self._put_in(trainer, pl_module)

    # ---------------------------------------------------------------- the average in the module

    @contextmanager
    def averaged(self, trainer: Any, pl_module: Any) -> Iterator[None]:
        """The average is in the module for a block; afterwards what was in it before.

        Ranks: all, if buffers are averaged; any otherwise.
        """
        self._take_loaded(pl_module)
        is_put_in = self._put_in(trainer, pl_module)
        try:
            yield
        finally:
            if is_put_in:
                self._put_back(pl_module)

    def saving(self, trainer: Any, pl_module: Any) -> AbstractContextManager[None]:
        """A checkpoint's model is the average; the weights that are trained are in this callback's state."""
        return self.averaged(trainer, pl_module) if self.use_in_evaluation else nullcontext()

    def _lend(self, trainer: Any, module: nn.Module) -> None:
        if self.use_in_evaluation:
            self._take_loaded(module)
            self._is_lent = self._put_in(trainer, module)

    def _take_back(self, module: nn.Module) -> None:
        if self._is_lent:
            self._is_lent = False
            self._put_back(module)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Put the average into the module."""
        self._lend(trainer, pl_module)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Put back what is trained."""
        self._take_back(pl_module)

    def on_test_start(self, trainer: Any, pl_module: Any) -> None:
        """Put the average into the module."""
        self._lend(trainer, pl_module)

    def on_test_end(self, trainer: Any, pl_module: Any) -> None:
        """Put back what was there."""
        self._take_back(pl_module)

    def on_predict_start(self, trainer: Any, pl_module: Any) -> None:
        """Put the average into the module."""
        self._lend(trainer, pl_module)

    def on_predict_end(self, trainer: Any, pl_module: Any) -> None:
        """Put back what was there."""
        self._take_back(pl_module)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Put back what was there, if the average was in the module only to be evaluated."""
        self._take_back(pl_module)

    def _put_in(self, trainer: Any, module: nn.Module) -> bool:
        """Whether it was not there yet; nothing is done before the first update."""
        if self._training or not self._average:
            return False
        with torch.inference_mode(False), torch.no_grad():  # else what is copied could not be trained on
            tensors = self._tensors(module)
            self._training = {name: tensor.clone() for name, tensor in tensors.items()}
            for name, tensor in tensors.items():
                tensor.copy_(self._average[name])
            if self.use_buffers and trainer.world_size > 1:
                trainer.strategy.sync_buffers(trainer.run.prepared)
        return True

    def _put_back(self, module: nn.Module) -> None:
        with torch.inference_mode(False), torch.no_grad():
            if self._training:
                for name, tensor in self._tensors(module).items():
                    tensor.copy_(self._training[name])
            self._training = {}

    def _is_in(self, module: nn.Module) -> bool:
        pairs = [(self._average[name].to(one.dtype), one) for name, one in self._tensors(module).items()]
        return all(bool((average == one).all()) for average, one in pairs)

    def _tensors(self, module: nn.Module) -> dict[str, Tensor]:
        """What is averaged, by name: all parameters, also frozen ones, and buffers where they are."""
        tensors = {name: one.detach() for name, one in module.named_parameters()}
        for name, one in module.named_buffers():
            if (self.use_buffers or name in self._average) and one.is_floating_point():
                tensors[name] = one.detach()
        return tensors


class EMA(WeightAveraging):
    """Keeps an exponential moving average of the weights, and evaluates and saves with it; see `WeightAveraging`.

    Args:
        decay: Weight of the average against the new value: a number, or a function of the updates done.
        update_every: Between two updates.
        update_starting_at_step: No update before so many optimizer steps.
        update_starting_at_epoch: No update in the first so many epochs.
        use_buffers: Average floating-point buffers too.
        use_in_evaluation: Only keep the average if False.
    """

    def __init__(
        self,
        decay: float | Callable[[int], float] = 0.999,
        update_every: str | timedelta | Interval = "1 step",
        *,
        update_starting_at_step: int = 0,
        update_starting_at_epoch: int = 0,
        use_buffers: bool = False,
        use_in_evaluation: bool = True,
    ) -> None:
        super().__init__(
            decay, update_every=update_every, update_starting_at_step=update_starting_at_step,
            update_starting_at_epoch=update_starting_at_epoch, use_buffers=use_buffers,
            use_in_evaluation=use_in_evaluation,
        )  # fmt: skip


EMAWeightAveraging = EMA


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.float32 if tensor.dtype in _NARROW else tensor.dtype


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().to(_wide(tensor), copy=True)


def _like(saved: Tensor, target: Tensor, dtype: torch.dtype) -> Tensor:
    """A saved tensor on the device of the one that it belongs to, and sharded as that is."""
    if hasattr(target, "placements"):  # a DTensor
        from drivetrain.strategies.sharded_state import as_shards_of  # only here: it takes a while to import

        return as_shards_of(saved.to(dtype), target)
    return saved.to(target.device, dtype, copy=True)
