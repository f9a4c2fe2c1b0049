"""The window: the micro-batches of one optimizer step, with one gradient sync and the right gradient.

    for window in windows:            # one for each optimizer step
        for batch in window:          # its micro-batches; gradient sync is on in the last one only
            window.backward(loss, weight)
        rescale                       # to sum(w * g) / sum(w) over micro-batches and ranks
        clip, step, zero_grad

Each micro-batch's loss is scaled by its weight over a *nominal* total that all ranks know beforehand: `rounds`
micro-batches of the loader's batch size. Where the real total turns out to be the nominal one, nothing is left to do.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from drivetrain.base.errors import DataError, StepOutputError
from drivetrain.base.tree import batch_size_of
from drivetrain.data.loader import Loader
from drivetrain.fabric.weighted_loss import check_loss, is_nothing, multiply_gradients, read_weight, scale_loss
from drivetrain.fabric.window_job import WindowJob

END: Any = object()  # no batch


class Window:
    """The micro-batches of one optimizer step. Iterate over it, and call `backward` for each of them.

    Attributes:
        rounds: Micro-batches that the window has on the rank that has most of them.
        index: Which micro-batch runs now, from 0.
        is_last: This is the last micro-batch of this rank; gradients are synced in it.
        samples: Samples of the current micro-batch.
        weight: Sum of the weights of the micro-batches so far, on this rank.

    Args:
        job: What it has in common with others.
        loader: Knows the sizes of micro-batches.
        batches: The epoch, as far as it is still to come.
        start: Which micro-batch of the epoch is the first.
        rounds: How many at most.
        first: The first one, if it was read already.
        is_sized: The number of micro-batches is known.
        is_full: All of them hold the nominal number of samples, on all ranks.
    """

    __slots__ = (
        "__weakref__", "_batches", "_has_called", "_has_synced", "_is_alone", "_is_full", "_is_sized", "_job",
        "_loader", "_losses", "_next", "_nominal", "_num_local", "_num_samples", "_weighed", "index", "is_done",
        "is_last", "is_stop_agreed", "rounds", "samples", "start", "weight",
    )  # fmt: skip

    def __init__(
        self, job: WindowJob, loader: Loader, batches: Iterator[Any], start: int, rounds: int, *, first: Any = END,
        is_sized: bool = False, is_full: bool = False,
    ) -> None:  # fmt: skip
        self._job = job
        self._loader = loader
        self._batches = batches
        self._next = first
        self._is_sized, self._is_full = is_sized, is_full
        self._num_local = rounds if is_full or not is_sized else _num_local(loader, start, rounds)
        self._nominal = rounds * (loader.batch_size or 1)
        self._is_alone = rounds == 1 and job.num_ranks == 1
        self._losses: list[tuple[Tensor, Any]] = []
        self._has_synced = self._has_called = False
        self._weighed = -1  # the micro-batch whose weight was added last
        self.start, self.rounds, self.index = start, rounds, -1
        self.is_last = self.is_done = self.is_stop_agreed = False
        self.samples = self._num_samples = 0
        self.weight: Any = 0

    def __iter__(self) -> Iterator[Any]:
        """The micro-batches, each inside its own gradient-sync block."""
        job = self._job
        while (batch := self._take()) is not END:
            self._has_called = True
            with job.strategy.gradient_sync(job.prepared, self.is_last):
                yield batch
        if not self._is_sized:
            self.rounds = self.index + 1

    def _take(self) -> Any:
        """The next micro-batch, knowing whether another follows; `END` after the last."""
        index = self.index + 1
        if index >= self._num_local:
            return END
        if self._is_sized:
            batch = next(self._batches, END)
            if batch is END:
                raise DataError(
                    f"The loader ended after {self.start + index} batches; its length says {self._loader.num_rounds}.",
                    code="loader-length",
                    do="Give the loader the length that it has, or no __len__ at all.",
                )
            self.is_last = index == self._num_local - 1
        else:
            batch = self._next if self._next is not END else next(self._batches, END)
            if batch is END:
                return END
            # Without a length only a look at the next batch tells that this is the last one.
            self._next = next(self._batches, END) if index < self._num_local - 1 else END
            self.is_last = self._next is END
        if self._is_full:
            self.samples = self._loader.batch_size or 1
        else:
            size = self._loader.local_size(self.start + index)
            self.samples = batch_size_of(batch) if size is None else size
        self._num_samples += self.samples
        self.index = index
        return batch

    def backward(self, loss: Tensor | None, weight: Any = None) -> None:
        """Run backward on the mean loss of a micro-batch. Several losses of one micro-batch add up, as ever.

        Ranks: all, equally often for each of their micro-batches (the last one syncs).

        Args:
            loss: The mean over `weight` units, 0-dim. `None` adds nothing.
            weight: Units that the loss is a mean over (samples, tokens, ...): a number or a 0-dim tensor. By default
                the samples that the loader put into the micro-batch.

        Raises:
            StepOutputError: The loss is not a 0-dim tensor with a graph, or another one of the same micro-batch had
                another weight.
        """
        job = self._job
        weight = self.samples if weight is None else read_weight(weight)
        if is_nothing(loss, weight):
            if self.is_last:
                self._sync_idle()
            return
        check_loss(loss)
        assert loss is not None
        if self._weighed == self.index:
            self._add_loss(loss.detach(), weight)
        else:
            self._losses.append((loss.detach(), weight))
            self.weight = self.weight + weight
            self._weighed = self.index
        if not self._is_alone:
            loss = scale_loss(loss, weight, self._nominal)
        if job.strategy.loss_scale is not None:
            job.strategy.loss_scale.hold(self)
        job.strategy.backward(loss, job.prepared[0] if len(job.prepared) == 1 else None)
        if self.is_last:
            self._has_synced = True

    def _add_loss(self, loss: Tensor, weight: Any) -> None:
        """A further loss of the same micro-batch: its weight counts once."""
        before, known = self._losses[-1]
        if weight is not known and not isinstance(weight, Tensor) and weight != known:
            raise StepOutputError(
                f"Two losses of one micro-batch are means over {known} and over {weight} units.",
                code="loss",
                do="Give the losses of a micro-batch the same weight, or add them up and call backward once.",
            )
        self._losses[-1] = (before + loss, known)

    @property
    def loss(self) -> Tensor | None:
        """The weighted mean of the losses so far on this rank, 0-dim on the device; `None` before the first."""
        if not self._losses:
            return None
        if len(self._losses) == 1:
            return self._losses[0][0]
        weighted: Any = sum(loss * weight for loss, weight in self._losses)
        mean: Tensor = weighted / self.weight
        return mean

    def rescale(self, *, wants_stop: bool = False) -> bool:
        """Bring the summed gradients to sum(w * g) / sum(w) over all micro-batches and ranks; once, before clipping.

        Ranks: all (one small message, none on one rank).

        Args:
            wants_stop: This rank would like the run to stop; told with the weights, see `is_stop_agreed`.

        Returns:
            False when the weights are 0 on all ranks, so that there is nothing to step on.
        """
        job = self._job
        if not self._has_synced:
            self._sync_idle()
        elif job.num_ranks > 1:
            for prepared in job.prepared:
                job.strategy.finish_sync(prepared)
        total = self.weight if job.num_ranks == 1 else self.agree(wants_stop)
        if not isinstance(total, Tensor) and total == 0:
            return False
        if job.strategy.loss_scale is not None:
            for optimizer in job.optimizers:
                job.strategy.unscale(optimizer)
        if self._is_alone:
            return True
        multiply_gradients(job.parameters, job.num_averaged * self._nominal / total)  # by 1 with nominal weights
        return True

    def agree(self, wants_stop: bool) -> Any:
        """The weight of all ranks, and whether any of them wants to stop.

        Ranks: all (one small message).
        """
        collectives = self._job.collectives
        device = self._job.strategy.device
        own = self.weight if device.type == "cpu" else 0.0
        total, num_stops = collectives.agree([float(own), float(wants_stop)])
        self.is_stop_agreed = num_stops > 0
        if device.type == "cpu":
            return total
        # The weight may be a tensor of the device: reading it back would make the host wait.
        weight = self.weight if isinstance(self.weight, Tensor) else torch.tensor(float(self.weight), device=device)
        return collectives.all_reduce(weight.to(torch.float64), op="sum")

    def global_samples(self) -> int:
        """Samples of the window on all ranks, as far as the loader knows; else this rank's times the ranks."""
        if self._is_full:
            return self._nominal * self._job.num_shards
        total = 0
        for index in range(self.start, self.start + self.rounds):
            size = self._loader.round_size(index)
            if size is None:
                return self._num_samples * self._job.num_averaged
            total += size
        return total

    def _sync_idle(self) -> None:
        self._has_synced = True
        for prepared in self._job.prepared:
            self._job.strategy.sync_idle(prepared, has_called=self._has_called)

    def step(self) -> bool:
        """Rescale, clip, step, zero. A window of `fabric.windows` does it by itself after its last micro-batch.

        Ranks: all.

        Returns:
            False if no step was made: all weights were 0, or scaled gradients overflowed.
        """
        job = self._job
        has_weight = self.rescale()
        if has_weight:
            job.clip_gradients()
        has_stepped = has_weight and job.strategy.step(job.optimizers)
        for optimizer in job.optimizers:
            optimizer.zero_grad()
        self.close(has_weight)
        return has_stepped

    def close(self, has_weight: bool) -> None:
        """Note that the window is done; a window whose weights were all 0 is said once."""
        self.is_done = True
        if self._job.strategy.loss_scale is not None:
            self._job.strategy.loss_scale.release(self)
        if has_weight:
            self._job.num_steps += 1
        elif not self._job.has_said_empty:
            self._job.has_said_empty = True
            warnings.warn("A window had no weight on any rank: its optimizer step was skipped.", stacklevel=3)


def _num_local(loader: Loader, start: int, rounds: int) -> int:
    """Micro-batches that this rank has in a window: in the last round of an epoch it may have none."""
    return rounds - 1 if loader.local_size(start + rounds - 1) == 0 else rounds
