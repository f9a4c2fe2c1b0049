"""Windows of most steps: one micro-batch on each rank, with the nominal number of samples.

There is nothing to scale. On one rank there is nothing to sync or to agree on, either: a step of it is the step of a
plain loop, and costs little more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from drivetrain.data.loader import Loader
from drivetrain.fabric.weighted_loss import check_same_weight, has_loss, read_weight
from drivetrain.fabric.window import END, Window
from drivetrain.fabric.window_job import WindowJob
from drivetrain.strategies.single_device import SingleDevice


class OneBatchWindow(Window):
    """One micro-batch with the nominal number of samples on each rank, without a loss scale.

    Args:
        job: What it has in common with others.
        loader: Knows the sizes of micro-batches.
        batches: The epoch, as far as it is still to come.
        start: Which micro-batch of the epoch it is.
        samples: How many it holds.
    """

    rounds = _size = _num_local = 1
    is_last = _is_sized = _is_full = True
    _is_open = False
    _next = END
    _loss: Tensor | None = None

    def __init__(self, job: WindowJob, loader: Loader, batches: Iterator[Any], start: int, samples: int) -> None:
        self._job = job
        self._loader = loader
        self._batches = batches
        self.start = start
        self.samples = samples

    def _take(self) -> Any:
        try:
            batch = next(self._batches, END)
        except Exception as error:
            self._loader.note_place(error, self.start)
            raise
        if batch is END:
            raise self._ended_early(self.start)
        self.index = 0
        return batch

    def _note(self, loss: Tensor, weight: Any) -> None:
        """The loss, or one more loss of the same micro-batch."""
        if self._loss is None:
            self._loss, self.weight = loss, weight
        else:
            check_same_weight(self.weight, weight)
            self._loss = self._loss.detach() + loss.detach()

    @property
    def _losses(self) -> list[tuple[Tensor, Any]]:  # type: ignore[override]
        return [] if self._loss is None else [(self._loss.detach(), self.weight)]

    def global_counts(self) -> tuple[int, int]:
        """One micro-batch, and its samples on all ranks."""
        return 1, self.samples * self._job.num_shards

    def close(self, *, ends_step: bool | None = None) -> None:
        """The usual end, or that of any window."""
        if self.skipped is not None or ends_step is not None:
            super().close(ends_step=ends_step)
            return
        job = self._job
        self.is_done = True
        job.strategy.end_step(job.prepared)
        job.num_steps += 1


class SingleWindow(OneBatchWindow):
    """On one rank."""

    _is_alone = _has_synced = True

    def __iter__(self) -> Iterator[Any]:
        """The micro-batch."""
        return iter((self._take(),))

    def backward(self, loss: Tensor | None, weight: Any = None) -> None:
        """Run backward on the loss; its weight counts only if it is 0."""
        job = self._job
        weight = self.samples if weight is None else read_weight(weight)
        if not has_loss(loss, weight):
            return
        assert loss is not None
        self._note(loss, weight)
        job.strategy.backward(loss, job.prepared[0] if len(job.prepared) == 1 else None)

    def rescale(self) -> bool:
        """Whether there is something to step on."""
        if self._loss is None:
            return self._skip("weight")
        return self._job.nonfinite == "ignore" or self._is_finite()

    @staticmethod
    def fits(job: WindowJob) -> bool:
        """Windows of a job can be of this kind: nothing in its strategy has to be told of a micro-batch."""
        strategy = job.strategy
        is_plain = type(strategy).gradient_sync is SingleDevice.gradient_sync and strategy.loss_scale is None
        return job.num_ranks == 1 and is_plain and job.finder is None and job.remainder != "drop"
