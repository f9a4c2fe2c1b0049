"""The callback protocol: what a user hangs into a run."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any


class Callback:
    """Override what is needed; a hook that nobody overrides costs nothing.

    The trainer and the module are handed over for the call: store neither. Hooks run on all ranks, and may communicate.
    Order within an event: callbacks as given, the module, then callbacks with `runs_last`.

    Attributes:
        runs_last: This callback judges what the others left: it runs after the module.
    """

    runs_last: bool = False

    @property
    def state_key(self) -> str:
        """Under which name the state is kept in a checkpoint; two of the same class need different ones."""
        return type(self).__qualname__

    def state_dict(self) -> dict[str, Any]:
        """Plain data that a checkpoint keeps. All ranks."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` gave, after `on_load_checkpoint`. All ranks."""

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """After the data module's `setup`, before the module's and before loaders are made; the process group is ready.

        Args:
            trainer: The run.
            pl_module: The module.
            stage: `"fit"`, `"validate"`, `"test"` or `"predict"`.
        """

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """The run is over, also after an error; loggers are finalized already."""

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Everything is set up, and loaded from a checkpoint; before the sanity check."""

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """After `on_train_end`; not after an error."""

    def on_sanity_check_start(self, trainer: Any, pl_module: Any) -> None:
        """Before the few batches of validation that come before training; not where a run goes on from a checkpoint."""

    def on_sanity_check_end(self, trainer: Any, pl_module: Any) -> None:
        """After them; their metrics are dropped next."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """After the sanity check, before the first epoch."""

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """After the last epoch."""

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Before the first micro-batch of an epoch."""

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """After an epoch and its validation; its metrics are reduced, and what is logged here comes to them."""

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Before each micro-batch."""

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """After each micro-batch; in the last one of a window after the optimizer step."""

    def on_step_end(self, trainer: Any, pl_module: Any) -> None:
        """Once after each optimizer step, its other hooks and the loggers' row: the place to save."""

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        """Before each backward; the loss is what `training_step` returned."""

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        """After each backward. Gradients are synced and rescaled only after the window's last one."""

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Once for each optimizer and window, with the true gradients, before they are clipped."""

    def on_before_zero_grad(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Once for each optimizer and window, after the step."""

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Before validation."""

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """After validation; its metrics are reported."""

    def on_validation_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Before the first validation batch."""

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """After the last validation batch; metrics are reduced, and what is logged here comes to them."""

    def on_validation_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Before each validation batch."""

    def on_validation_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """After each validation batch."""

    def on_test_start(self, trainer: Any, pl_module: Any) -> None:
        """Before the test."""

    def on_test_end(self, trainer: Any, pl_module: Any) -> None:
        """After the test; its metrics are reported."""

    def on_test_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Before the first test batch."""

    def on_test_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """After the last test batch; metrics are reduced, and what is logged here comes to them."""

    def on_test_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Before each test batch."""

    def on_test_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """After each test batch."""

    def on_predict_start(self, trainer: Any, pl_module: Any) -> None:
        """Before prediction."""

    def on_predict_end(self, trainer: Any, pl_module: Any) -> None:
        """After prediction."""

    def on_predict_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Before the first batch of prediction."""

    def on_predict_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """After the last batch of prediction."""

    def on_predict_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Before each batch of prediction."""

    def on_predict_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """After each batch of prediction."""

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """The run is ended by an exception, on this rank; before `teardown`."""

    def saving(self, trainer: Any, pl_module: Any) -> AbstractContextManager[None]:
        """A block in which a checkpoint is written: what the module holds in it is its model. All ranks."""
        return nullcontext()

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Add plain data or tensors to a checkpoint, or change its `state_dict`: what is left is saved. All ranks."""

    def on_before_load(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Before a fit loads a checkpoint: bring module and optimizers to what was saved, so that it fits them."""

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Read back what was added, or change `state_dict`: nothing is wrapped or loaded yet. All ranks."""
