"""The loops of a trainer as scripts read them: views of its counters, which are its own and are kept once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

_COUNTERS = "trainer.current_epoch, trainer.global_step, trainer.micro_step or trainer.progress"


class LoopView:
    """Reads from a trainer; keeps nothing of its own.

    Args:
        trainer: Whose loop it is.
        path: What leads here, for errors.
    """

    _instead: dict[str, str] = {}

    def __init__(self, trainer: Any, path: str) -> None:
        object.__setattr__(self, "_trainer", trainer)
        object.__setattr__(self, "_path", path)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{self._path} has no attribute {name!r}: {self._hint(name)}.", name=name, obj=self)

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(member := getattr(type(self), name, None), property) and member.fset is not None:
            member.fset(self, value)
            return
        raise AttributeError(f"{self._path}.{name} cannot be set: {self._hint(name)}.", name=name, obj=self)

    def _hint(self, name: str) -> str:
        return self._instead.get(name, f"there is no loop behind it; read {_COUNTERS}")


@dataclass(frozen=True)
class Count:
    """How often something was done.

    Attributes:
        ready: Begun, the one that runs included.
        completed: Over.
    """

    ready: int
    completed: int

    @property
    def started(self) -> int:
        """As `ready`."""
        return self.ready

    @property
    def processed(self) -> int:
        """As `completed`."""
        return self.completed


@dataclass(frozen=True)
class Counts:
    """Of micro-batches, or of epochs.

    Attributes:
        current: In this epoch; of epochs in the whole run.
        total: In the whole run.
        is_last_batch: See `trainer.is_last_batch`.
    """

    current: Count
    total: Count
    is_last_batch: bool = False


class EpochLoopView(LoopView):
    """Inside of an epoch."""

    _instead = {
        "_batches_that_stepped": "rows of the loggers are counted in trainer.global_step",
        "val_loop": "read trainer.num_val_batches and trainer.callback_metrics",
        "max_steps": "set trainer.fit_loop.max_steps",
        "scheduler_progress": "read trainer.lr_scheduler_configs",
    }

    @property
    def batch_progress(self) -> Counts:
        """Micro-batches of this rank."""
        trainer = self._trainer
        at = trainer.run.loop.at if trainer.run is not None and trainer.run.loop is not None else None
        done, total = trainer.progress.epoch_micro_step, trainer.micro_step
        ready = done
        window = at.window if at is not None else None
        if at is not None and window is not None and at.stage in ("window", "batch_end"):
            begun, whole = int(at.before[3]), int(at.before[1])
            ready, done = begun + window.index + 1, max(done, begun + total - whole)
        return Counts(Count(ready, done), Count(total + ready - done, total), trainer.is_last_batch)

    @property
    def batch_idx(self) -> int:
        """The number of the micro-batch that runs, or ran last, in its epoch; -1 before the first."""
        return self.batch_progress.current.ready - 1

    @property
    def total_batch_idx(self) -> int:
        """Likewise in the whole run."""
        return self.batch_progress.total.ready - 1

    @property
    def global_step(self) -> int:
        """Optimizer steps done."""
        return int(self._trainer.global_step)

    @property
    def max_steps(self) -> int:
        """Optimizer steps at most; -1 for no end."""
        return int(self._trainer.max_steps)

    @property
    def min_steps(self) -> int:
        """Not stopped early before."""
        return int(self._trainer.min_steps)


class FitLoopView(EpochLoopView):
    """The loop of training. Limits may be set; in a run on all ranks alike."""

    _instead = {
        **EpochLoopView._instead,
        "epoch_loop": "it is a view",
        "setup_data": "pass reload_dataloaders_every_n_epochs to the Trainer",
        "should_stop": "set trainer.should_stop",
    }

    @property
    def epoch_loop(self) -> EpochLoopView:
        """Inside of an epoch."""
        return EpochLoopView(self._trainer, f"{self._path}.epoch_loop")

    @property
    def epoch_progress(self) -> Counts:
        """Epochs."""
        trainer = self._trainer
        done = trainer.current_epoch
        is_inside = trainer.progress.epoch_micro_step > 0 or trainer.metrics.place == "train"
        count = Count(done + is_inside, done)
        return Counts(count, count)

    @property
    def current_epoch(self) -> int:
        """Epochs completed; the number of the one that runs, from 0."""
        return int(self._trainer.current_epoch)

    @property
    def max_batches(self) -> int | float:
        """Micro-batches of an epoch on each rank; inf if unknown."""
        batches: int | float = self._trainer.num_training_batches
        return batches

    @property
    def max_epochs(self) -> int:
        """Epochs at most; -1 for no end. It may be set."""
        return int(self._trainer.max_epochs)

    @max_epochs.setter
    def max_epochs(self, value: int) -> None:
        self._limit(max_epochs=value)

    @property
    def min_epochs(self) -> int:
        """Not stopped early before. It may be set."""
        return int(self._trainer.min_epochs)

    @min_epochs.setter
    def min_epochs(self, value: int) -> None:
        self._limit(min_epochs=value)

    @property
    def max_steps(self) -> int:
        """Optimizer steps at most; -1 for no end. It may be set."""
        return int(self._trainer.max_steps)

    @max_steps.setter
    def max_steps(self, value: int) -> None:
        self._limit(max_steps=value)

    def _limit(self, **limits: int) -> None:
        trainer = self._trainer
        trainer.limits = replace(trainer.limits, **limits)
        if trainer.run is not None and trainer.run.loop is not None:
            trainer.run.loop.limits = trainer.limits


class EvaluationLoopView(LoopView):
    """The loop of validation, test or prediction."""

    _instead = {
        "epoch_batch_indices": "a BasePredictionWriter is handed the indices",
        "return_predictions": "pass return_predictions to trainer.predict",
    }

    @property
    def max_batches(self) -> list[int | float]:
        """Of each loader on this rank."""
        name = {"validate_loop": "num_val_batches", "test_loop": "num_test_batches"}
        batches: list[int | float] = getattr(self._trainer, name.get(self._path.split(".")[-1], "num_predict_batches"))
        return batches

    @property
    def num_dataloaders(self) -> int:
        """Loaders of the stage."""
        return len(self.max_batches)

    @property
    def predictions(self) -> Any:
        """This rank's, for the hooks at the end of the prediction; afterwards `trainer.predict` has returned them."""
        trainer = self._trainer
        loop = trainer.run.evaluation if trainer.run is not None else None
        found = loop.predictions if loop is not None else []
        return found[0] if len(found) == 1 else found


class LoopViews:
    """The loops of a trainer, for scripts that read them there. Everything in them is an attribute of the trainer."""

    @property
    def fit_loop(self) -> FitLoopView:
        """Counters of training, and its limits, which may be set."""
        return FitLoopView(self, "trainer.fit_loop")

    @property
    def validate_loop(self) -> EvaluationLoopView:
        """What validation has."""
        return EvaluationLoopView(self, "trainer.validate_loop")

    @property
    def test_loop(self) -> EvaluationLoopView:
        """What the test has."""
        return EvaluationLoopView(self, "trainer.test_loop")

    @property
    def predict_loop(self) -> EvaluationLoopView:
        """What prediction has."""
        return EvaluationLoopView(self, "trainer.predict_loop")

    @property
    def is_last_batch(self) -> bool:
        """The micro-batch that runs, or ran last, is this rank's last one of its epoch.

        False where that is not known: in an epoch without a length until it is over.
        """
        run: Any = getattr(self, "run", None)
        return run is not None and run.loop is not None and run.loop.at.is_last_batch
