"""Predictions that are written, batch by batch or at the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from drivetrain.base.errors import ConfigError
from drivetrain.base.tree import move_to, slice_batch
from drivetrain.loop.callback import Callback

_INTERVALS = ("batch", "epoch", "batch_and_epoch")


class BasePredictionWriter(Callback):
    """Hands predictions and the indices of their samples to `write_on_batch_end` or `write_on_epoch_end`: yours.

    Each rank is handed its own; each sample is handed to one rank, once.

    Args:
        write_interval: `"batch"`, `"epoch"` or `"batch_and_epoch"`. Only for the latter two are predictions kept.

    Raises:
        ConfigError: `write_interval` is none of these.
    """

    def __init__(self, write_interval: str = "batch") -> None:
        if write_interval not in _INTERVALS:
            raise ConfigError(
                f"{type(self).__name__} got write_interval={write_interval!r}.",
                code="write-interval",
                do=f"Use one of {', '.join(_INTERVALS)}.",
            )
        self.write_interval = write_interval
        self._indices: list[list[list[Any]] | None] = []
        self._kept: list[list[Any]] = []

    def write_on_batch_end(
        self, trainer: Any, pl_module: Any, prediction: Any, batch_indices: Sequence[Any] | None, batch: Any,
        batch_idx: int, dataloader_idx: int,
    ) -> None:  # fmt: skip
        """Write what `predict_step` returned.

        Args:
            trainer: The run.
            pl_module: The module.
            prediction: For this batch.
            batch_indices: Of its samples in the data set; `None` where the loader makes its batches itself.
            batch: The batch.
            batch_idx: Its number on this rank.
            dataloader_idx: Of which loader.
        """

    def write_on_epoch_end(self, trainer: Any, pl_module: Any, predictions: Any, batch_indices: Any) -> None:
        """Write all predictions of this rank.

        Args:
            trainer: The run.
            pl_module: The module.
            predictions: One for each batch; for several loaders a list of such lists.
            batch_indices: Of the samples of each batch, in the same shape; see `in_order`.
        """

    def on_predict_start(self, trainer: Any, pl_module: Any) -> None:
        """Note which samples each batch will have."""
        self._indices = [loader.index_batches() for loader in trainer.run.loaders]
        self._kept = [[] for _ in self._indices]

    def on_predict_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Write, or keep."""
        if self.write_interval != "epoch":
            indices = self._indices[dataloader_idx]
            own = None if indices is None else indices[batch_idx]
            self.write_on_batch_end(trainer, pl_module, outputs, own, batch, batch_idx, dataloader_idx)
        if self.write_interval != "batch":
            self._kept[dataloader_idx].append(outputs)

    def on_predict_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Write what was kept."""
        if self.write_interval == "batch":
            return
        kept, self._kept = self._kept, []
        indices = [
            None if own is None else own[: len(outputs)] for own, outputs in zip(self._indices, kept, strict=True)
        ]
        is_one = len(kept) == 1
        self.write_on_epoch_end(trainer, pl_module, kept[0] if is_one else kept, indices[0] if is_one else indices)


def in_order(trainer: Any, predictions: Sequence[Any], batch_indices: Sequence[Sequence[Any]]) -> list[Any]:
    """The predictions of all ranks for one loader, a sample each, in the order of the data set, on the CPU.

    Ranks: all; they are pickled, and every rank gets all of them.

    Args:
        trainer: The run.
        predictions: One for each batch, with its samples along dim 0.
        batch_indices: Of the samples of each batch.
    """
    own = [
        (index, move_to(slice_batch(prediction, place, place + 1, len(indices)), torch.device("cpu")))
        for prediction, indices in zip(predictions, batch_indices, strict=True)
        for place, index in enumerate(indices)
    ]
    shares = trainer.collectives.gather_objects(own)[:: trainer.collectives.num_alike]
    return [one for _, one in sorted((pair for share in shares for pair in share), key=lambda pair: pair[0])]
