"""Data with its own set-up, apart from the model."""

from __future__ import annotations

from typing import Any

from drivetrain.loop.batch_transfer import BatchTransfer
from drivetrain.loop.hyper_parameters import HyperParameters


class DataModule(HyperParameters, BatchTransfer):
    """Everything about the data in one object: download, split, loaders.

    Order of calls in a run: `prepare_data` (rank 0 of each machine, before the others), `setup(stage)` (all ranks), the
    loaders of the stage, `teardown(stage)`.
    """

    trainer: Any = None

    def prepare_data(self) -> None:
        """Download or convert, before `setup`. Runs on one rank of each machine: set no attributes here."""

    def setup(self, stage: str) -> None:
        """Make the data sets, before any other `setup`. All ranks.

        Args:
            stage: `"fit"`, `"validate"`, `"test"` or `"predict"`.
        """

    def teardown(self, stage: str) -> None:
        """Undo `setup`, before any other `teardown`; also after an error."""

    def on_exception(self, exception: BaseException) -> None:
        """The run is ended by an exception, on this rank; before `teardown`."""

    def train_dataloader(self) -> Any:
        """The loader of training, after `setup`, if `fit` was given none."""
        return None

    def val_dataloader(self) -> Any:
        """One loader of validation, or a list, after `setup`, if none was given."""
        return None

    def test_dataloader(self) -> Any:
        """One loader of the test, or a list, after `setup`, if none was given."""
        return None

    def predict_dataloader(self) -> Any:
        """One loader of prediction, or a list, after `setup`, if none was given."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """Plain data that a checkpoint keeps. All ranks."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` gave, after `on_load_checkpoint`. All ranks."""
