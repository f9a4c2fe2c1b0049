"""The hooks of a module, as methods that do nothing."""

from __future__ import annotations

from typing import Any

from drivetrain.loop.batch_transfer import BatchTransfer
from drivetrain.loop.evaluation_modes import EvaluationModes
from drivetrain.loop.step_methods import StepMethods


class ModuleHooks(BatchTransfer, StepMethods, EvaluationModes):
    """Override what is needed. A hook that nobody overrides costs nothing. When each runs: `docs/hooks.md`."""

    def prepare_data(self) -> None:
        """Download or convert. Runs on one rank of each machine, before `setup`."""

    def setup(self, stage: str) -> None:
        """Build what needs the data, which are set up; the module is not yet on its device. All ranks.

        Args:
            stage: `"fit"`, `"validate"`, `"test"` or `"predict"`.
        """

    def configure_model(self) -> None:
        """Make layers here instead of in `__init__`: on the device, in the run's dtype. Each run asks for it."""

    def configure_callbacks(self) -> Any:
        """Callbacks that the module brings, asked for first; they take the place of the trainer's of the same class."""
        return []

    def teardown(self, stage: str) -> None:
        """Undo `setup`; also after an error. All ranks."""

    def train_dataloader(self) -> Any:
        """The loader of training, after `setup`, if nobody else gave one."""
        return None

    def val_dataloader(self) -> Any:
        """One loader of validation, or a list, after `setup`, if nobody else gave one."""
        return None

    def test_dataloader(self) -> Any:
        """One loader of the test, or a list, after `setup`, if nobody else gave one."""
        return None

    def predict_dataloader(self) -> Any:
        """One loader of prediction, or a list, after `setup`, if nobody else gave one."""
        return None

    def on_fit_start(self) -> None:
        """Everything is set up, and loaded from a checkpoint; before the sanity check."""

    def on_fit_end(self) -> None:
        """After `on_train_end`; not after an error."""

    def on_train_start(self) -> None:
        """After the sanity check, before the first epoch."""

    def on_train_end(self) -> None:
        """After the last epoch."""

    def on_train_epoch_start(self) -> None:
        """Before the first micro-batch of an epoch."""

    def on_train_epoch_end(self) -> None:
        """After an epoch and its validation; its metrics are reduced, and what is logged here comes to them."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Before each micro-batch."""

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """After each micro-batch; in the last one of a window after the optimizer step."""

    def on_before_backward(self, loss: Any) -> None:
        """Before each backward; the loss is what `training_step` returned."""

    def on_after_backward(self) -> None:
        """After each backward. Gradients are synced and rescaled only after the window's last one."""

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        """Once for each optimizer and window, with the true gradients, before they are clipped."""

    def on_before_zero_grad(self, optimizer: Any) -> None:
        """Once for each optimizer and window, after the step."""

    def on_step_end(self) -> None:
        """Once after each optimizer step, its other hooks and the loggers' row: the place to save."""

    def on_validation_start(self) -> None:
        """Before validation."""

    def on_validation_end(self) -> None:
        """After validation; its metrics are reported."""

    def on_validation_epoch_start(self) -> None:
        """Before the first validation batch."""

    def on_validation_epoch_end(self) -> None:
        """After the last validation batch; metrics are reduced, and what is logged here comes to them."""

    def on_validation_batch_start(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Before each validation batch."""

    def on_validation_batch_end(self, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """After each validation batch."""

    def on_test_start(self) -> None:
        """Before the test."""

    def on_test_end(self) -> None:
        """After the test; its metrics are reported."""

    def on_test_epoch_start(self) -> None:
        """Before the first test batch."""

    def on_test_epoch_end(self) -> None:
        """After the last test batch; metrics are reduced, and what is logged here comes to them."""

    def on_test_batch_start(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Before each test batch."""

    def on_test_batch_end(self, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """After each test batch."""

    def on_predict_start(self) -> None:
        """Before prediction."""

    def on_predict_end(self) -> None:
        """After prediction."""

    def on_predict_epoch_start(self) -> None:
        """Before the first batch of prediction."""

    def on_predict_epoch_end(self) -> None:
        """After the last batch of prediction."""

    def on_predict_batch_start(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Before each batch of prediction."""

    def on_predict_batch_end(self, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """After each batch of prediction."""

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add plain data or tensors to a checkpoint, or change its `state_dict`: what is left is saved. All ranks."""

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Read back what was added, or change `state_dict`: nothing is wrapped or loaded yet. All ranks."""
