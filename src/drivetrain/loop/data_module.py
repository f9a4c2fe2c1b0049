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
        """Download or convert. Runs on one rank of each machine: set no attributes here."""

    def setup(self, stage: str) -> None:
        """Make the data sets. Runs on all ranks.

        Args:
            stage: `"fit"`, `"validate"`, `"test"` or `"predict"`.
        """

    def teardown(self, stage: str) -> None:
        """Undo `setup`."""

    def train_dataloader(self) -> Any:
        """The loader of training."""
        return None

    def val_dataloader(self) -> Any:
        """One loader of validation, or a list."""
        return None

    def test_dataloader(self) -> Any:
        """One loader of the test, or a list."""
        return None

    def predict_dataloader(self) -> Any:
        """One loader of prediction, or a list."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """Kept in every checkpoint."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
