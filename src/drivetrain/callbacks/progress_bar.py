"""What every progress bar knows: of what there is how much to do, how much is done, and whether to show it."""

from __future__ import annotations

from typing import Any

from drivetrain.base.errors import NotOpenError
from drivetrain.loop.callback import Callback


class ProgressBar(Callback):
    """Derive a bar of your own from it, and draw in the hooks of a callback. It draws nothing itself.

    Its hooks run after those of the module, so that what the module has logged can be shown. On other ranks than 0 it
    is not enabled. Who overrides `setup` or `teardown` calls those here.
    """

    runs_last = True
    _is_wanted = True
    _trainer: Any = None  # for the duration of a run

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """A run begins."""
        self._trainer = trainer

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """It is over."""
        self._trainer = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_trainer": None}

    @property
    def trainer(self) -> Any:
        """The trainer, for the duration of a run.

        Raises:
            NotOpenError: Outside of one.
        """
        if self._trainer is None:
            raise NotOpenError(
                f"{type(self).__name__} was asked for its run outside of one.",
                code="outside-run",
                do="Ask in a hook; call super().setup(trainer, pl_module, stage) where you override setup.",
            )
        return self._trainer

    # ---------------------------------------------------------------- shown or not

    def enable(self) -> None:
        """Show it, also after `disable`."""
        self._is_wanted = True

    def disable(self) -> None:
        """Show nothing from now on."""
        self._is_wanted = False

    @property
    def is_enabled(self) -> bool:
        """This rank shows it."""
        return self._is_wanted and (self._trainer is None or self._trainer.is_global_zero)

    @property
    def is_disabled(self) -> bool:
        """This rank does not show it."""
        return not self.is_enabled

    def get_metrics(self, trainer: Any, pl_module: Any) -> dict[str, Any]:
        """The values that are shown: those logged with `prog_bar=True`. Override it to show others.

        They are read back from the device: call it when something is drawn.
        """
        return dict(trainer.progress_bar_metrics)

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print beside the bar, if it is enabled."""
        if self.is_enabled:
            print(*args, **kwargs)

    # ---------------------------------------------------------------- how much there is

    @property
    def total_train_batches(self) -> int | float:
        """Micro-batches of an epoch on this rank; inf if unknown."""
        batches: int | float = self.trainer.num_training_batches
        return batches

    @property
    def total_val_batches(self) -> int | float:
        """Of all loaders of validation, or of the sanity check, on this rank."""
        return sum(self._val_sizes)

    @property
    def total_val_batches_current_dataloader(self) -> int | float:
        """Of the loader that is evaluated now."""
        return self._of_loader(self._val_sizes)

    @property
    def total_test_batches(self) -> int | float:
        """Of all loaders of the test on this rank."""
        sizes: list[int | float] = self.trainer.num_test_batches
        return sum(sizes)

    @property
    def total_test_batches_current_dataloader(self) -> int | float:
        """Of the loader that is evaluated now."""
        return self._of_loader(self.trainer.num_test_batches)

    @property
    def total_predict_batches(self) -> int | float:
        """Of all loaders of prediction on this rank."""
        sizes: list[int | float] = self.trainer.num_predict_batches
        return sum(sizes)

    @property
    def total_predict_batches_current_dataloader(self) -> int | float:
        """Of the loader that is evaluated now."""
        return self._of_loader(self.trainer.num_predict_batches)

    @property
    def _val_sizes(self) -> list[int | float]:
        trainer = self.trainer
        is_check = trainer.sanity_checking and trainer.num_sanity_val_steps >= 0
        sizes: list[int | float] = trainer.num_val_batches
        return [min(size, trainer.num_sanity_val_steps) for size in sizes] if is_check else sizes

    def _of_loader(self, sizes: list[int | float]) -> int | float:
        loop = self.trainer.run.evaluation
        return sizes[loop.loader_index] if loop is not None and sizes else 0

    # ---------------------------------------------------------------- how much is done

    @property
    def train_batch_idx(self) -> int:
        """Micro-batches of this epoch that are done on this rank."""
        return int(self.trainer.fit_loop.epoch_loop.batch_progress.current.completed)

    @property
    def val_batch_idx(self) -> int:
        """Batches that are done of the loader that is evaluated now."""
        loop = self.trainer.run.evaluation
        return 0 if loop is None else int(loop.num_done)

    test_batch_idx = predict_batch_idx = val_batch_idx

    # ---------------------------------------------------------------- what it is called

    @property
    def sanity_check_description(self) -> str:
        """What the sanity check is called."""
        return "Sanity check"

    @property
    def train_description(self) -> str:
        """What training is called."""
        return "Training"

    @property
    def validation_description(self) -> str:
        """What validation is called."""
        return "Validation"

    @property
    def test_description(self) -> str:
        """What the test is called."""
        return "Test"

    @property
    def predict_description(self) -> str:
        """What prediction is called."""
        return "Prediction"


def is_bar(callback: Any) -> bool:
    """A callback shows progress: it is a `ProgressBar`, or is called one."""
    return isinstance(callback, ProgressBar) or "ProgressBar" in type(callback).__name__
