"""The window: the micro-batches of one optimizer step, with one gradient sync and the right gradient.

    for window in windows:            # one for each optimizer step
        for batch in window:          # its micro-batches; gradient sync is on in the last one only
            window.backward(loss, weight)
                                      # before the last one: a small message begins, which says what ranks must agree on
        rescale                       # to sum(w * g) / sum(w) over micro-batches and ranks
        clip, step, zero_grad

Each micro-batch's loss is scaled by its weight over a *nominal* total that all ranks know beforehand: `rounds`
micro-batches of the loader's batch size. Where the real total turns out to be the nominal one, nothing is left to do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from drivetrain.base.errors import DataError
from drivetrain.base.tree import batch_size_of
from drivetrain.comm.shared_board import Usual
from drivetrain.data.loader import Loader
from drivetrain.fabric.agreement import Agreed, Agreement
from drivetrain.fabric.nonfinite import refuse_nonfinite
from drivetrain.fabric.weighted_loss import (
    check_same_weight,
    has_loss,
    multiply_gradients,
    read_weight,
    scale_loss,
    sum_weights,
)
from drivetrain.fabric.window_job import Carried, WindowJob
from drivetrain.strategies.optimizer_calls import zero_gradients

END: Any = object()  # no batch


class Window:
    """The micro-batches of one optimizer step. Iterate over it, and call `backward` for each of them.

    Attributes:
        rounds: Micro-batches that the window has on the rank that has most of them.
        index: Which micro-batch runs now, from 0.
        is_last: This is the last micro-batch of this rank; gradients are synced in it.
        samples: Samples of the current micro-batch.
        weight: Sum of the weights of the micro-batches so far, on this rank.
        count_ranks: How many ranks have data for the window; where only its beginning tells.
        is_stop_agreed: After the step: a rank wants the run to stop.
        is_end_agreed: After the step: a rank was told by a signal to end.
        is_step: An optimizer step is over, whether or not this rank made it; the window is not dropped, or still open.
        skipped: After `rescale`: why there is nothing to step on: `"weight"`, `"non-finite"`, `"drop"`,
            `"carry"`, or `"apart"`: only other ranks have a weight, and each steps by itself.

    Args:
        job: What it has in common with others.
        loader: Knows the sizes of micro-batches.
        batches: The epoch, as far as it is still to come.
        start: Which micro-batch of the epoch is the first.
        rounds: How many at most.
        first: The first one, if it was read already.
        size: How many would fill it.
        is_sized: The number of micro-batches is known.
        is_full: All of them hold the nominal number of samples, on all ranks.
        is_open: The epoch ends before the window is full, and the window goes on in the next one.
    """

    # Of a window that has not begun. One is made for each step: it sets only what differs.
    index = _weighed = -1  # `_weighed` is the micro-batch whose weight was added last
    samples = _num_samples = 0
    is_last = is_done = is_stop_agreed = is_end_agreed = _has_synced = _has_called = False
    is_step = True
    skipped: str | None = None
    count_ranks: Callable[[], float] | None = None
    weight: Any = 0
    _usual: Usual | None = None

    def __init__(
        self, job: WindowJob, loader: Loader, batches: Iterator[Any], start: int, rounds: int, *, first: Any = END,
        size: int | None = None, is_sized: bool = False, is_full: bool = False, is_open: bool = False,
    ) -> None:  # fmt: skip
        self._job = job
        self._loader = loader
        self._batches = batches
        self._next = first
        self._size = rounds if size is None else size
        self._is_sized, self._is_full, self._is_open = is_sized, is_full, is_open
        self._num_local = rounds if is_full or not is_sized else loader.num_local(start, rounds)
        self._nominal: float = rounds * (loader.batch_size or 1)
        self._is_alone = rounds == 1 and job.num_ranks == 1 and job.carried is None and not is_open and not job.finder
        self._losses: list[tuple[Tensor, Any]] = []
        self._agreement = Agreement(job.collectives) if job.num_ranks > 1 else job.no_agreement
        self.start, self.rounds = start, rounds
        if job.carried is not None:
            # What the last epoch left over was scaled for a whole window, and so is this.
            self.weight, self._nominal = job.carried.weight, job.carried.nominal
        elif is_open:
            self._nominal = self._size * (loader.batch_size or 1)
        elif is_sized and not is_full and loader.round_size(start) is not None:
            self._nominal = self.global_counts()[1] / job.num_shards

    @property
    def job(self) -> WindowJob:
        """What it has in common with others."""
        return self._job

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
        try:
            batch = self._next if self._next is not END else next(self._batches, END)
        except Exception as error:
            self._loader.note_place(error, self.start + index)
            raise
        if self._is_sized:
            if batch is END:
                raise self._ended_early(self.start + index)
            self.is_last = index == self._num_local - 1 and not self._is_open
        elif batch is END:
            return END
        else:
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

    def _ended_early(self, num_batches: int) -> DataError:
        return DataError(
            f"The loader ended after {num_batches} batches; its length says {self._loader.num_rounds}.",
            code="loader-length",
            do="Give the loader the length that it has, or no __len__ at all.",
        )

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
        if not has_loss(loss, weight):
            self._add_nothing()
            return
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
        if job.num_ranks > 1:
            self._before_backward()
        elif self.is_last:
            self._has_synced = True
        job.strategy.backward(loss, job.prepared[0] if len(job.prepared) == 1 else None)

    def _before_backward(self) -> None:
        if self.is_last:
            self._begin_agreement()
            self._has_synced = True

    def _add_nothing(self) -> None:
        if self.is_last:
            self._sync_idle()

    def _add_loss(self, loss: Tensor, weight: Any) -> None:
        """A further loss of the same micro-batch: its weight counts once."""
        before, known = self._losses[-1]
        check_same_weight(known, weight)
        self._losses[-1] = (before + loss, known)

    @property
    def loss(self) -> Tensor | None:
        """The weighted mean of the losses so far on this rank, 0-dim on the device; `None` before the first."""
        if not self._losses:
            return None
        if len(self._losses) == 1:
            return self._losses[0][0]
        weighted: Any = sum(loss * weight for loss, weight in self._losses)
        total: Any = sum(weight for _, weight in self._losses)
        mean: Tensor = weighted / total
        return mean

    # ---------------------------------------------------------------- what the ranks agree on

    def _begin_agreement(self) -> None:
        """Send what the ranks have to know of each other, beside the backward that follows.

        One small message for each window, on the CPU; none on one rank.
        """
        job = self._job
        if job.num_ranks > 1 and not self._agreement.has_begun:
            weight = math.nan if isinstance(self.weight, Tensor) else float(self.weight)
            if job.steps_apart:  # whether there is any is all that the others want to know
                weight = float(isinstance(self.weight, Tensor) or self.weight != 0)
            done = self.index + 1
            own = Agreed(
                weight, job.wants_stop(), job.wants_end(), not self._has_finite_losses(), done >= self._size,
                done == self._num_local, done, self._num_samples, self._is_out_of_memory(),
            )  # fmt: skip
            self._agreement.begin(own, self._usual)

    def agree(self) -> Agreed:
        """What the ranks have told each other; the message is sent now if it was not before.

        Ranks: all, if there are several.
        """
        self._begin_agreement()
        agreed = self._agreement.known or self._agreement.result()
        self.is_stop_agreed, self.is_end_agreed = agreed.stop > 0, agreed.end > 0
        return agreed

    def _is_out_of_memory(self) -> bool:
        return False

    def _has_finite_losses(self) -> bool:
        return self._job.nonfinite == "ignore" or all(bool(torch.isfinite(loss)) for loss, _ in self._losses)

    def _total_weight(self, agreed: Agreed) -> Any:
        """The weight of all ranks whose gradients are averaged; a tensor where reading it would make the host wait."""
        job = self._job
        if job.steps_apart:
            return self.weight
        if math.isnan(agreed.weight):  # that of a rank is on its device
            return sum_weights(self.weight, job.collectives, job.device)
        return agreed.weight

    def rescale(self) -> bool:
        """Bring the summed gradients to sum(w * g) / sum(w) over all micro-batches and ranks; once, before clipping.

        Ranks: all (one small message, none on one rank).

        Returns:
            False when there is nothing to step on: `skipped` says why.

        Raises:
            UnevenDataError: A rank ran out of data before the others, and `uneven` is `"error"`.
            NonFiniteError: A loss or gradient is inf or nan, and `nonfinite` is `"error"`.
        """
        job = self._job
        if self._is_open:
            return self._skip("carry")
        if not self._has_synced:
            self._sync_idle()
        elif job.num_ranks > 1:
            for prepared in job.prepared:
                job.strategy.finish_sync(prepared)
        return self._rescale_synced()

    def _rescale_synced(self) -> bool:
        job = self._job
        agreed = self.agree() if job.num_ranks > 1 else None
        if not self._is_sized and self._is_remainder():
            return self._skip(job.remainder)
        total, job.carried = self.weight if agreed is None else self._total_weight(agreed), None
        if not isinstance(total, Tensor) and total == 0:
            is_apart = job.steps_apart and self.agree().weight > 0
            return self._skip("apart" if is_apart else "weight")
        if job.strategy.loss_scale is not None:
            for optimizer in job.optimizers:
                job.strategy.unscale(optimizer)
        if not self._is_alone:  # by 1 with nominal weights
            multiply_gradients(job.parameters, job.num_averaged * self._nominal / total)
        return job.nonfinite == "ignore" or self._is_finite()

    def _is_remainder(self) -> bool:
        """No rank could fill the window, and what it holds is not to be stepped on. Of epochs without a length."""
        job = self._job
        if self.count_ranks is not None:
            job.check_even(self.count_ranks(), has_batch=self.index >= 0)
            if self.agree().filled < job.num_ranks:
                job.check_equally_long(self.index + 1)
        is_filled = self.agree().filled if job.num_ranks > 1 else self.index + 1 >= self._size
        return job.remainder != "step" and not is_filled

    def _is_finite(self) -> bool:
        """Losses and gradients are finite on all ranks; otherwise that is an error, or the step is skipped."""
        job = self._job
        losses = not self.agree().nonfinite if job.num_ranks > 1 else self._has_finite_losses()
        if losses and job.has_finite_gradients():
            return True
        refuse_nonfinite(self, job, self._loader, [loss for loss, _ in self._losses])
        return self._skip("non-finite")

    def _skip(self, reason: str) -> bool:
        self.skipped, self.is_step = reason, reason not in ("carry", "drop")
        if reason == "carry":
            before = self._job.carried.num if self._job.carried is not None else 0
            self._job.carried = Carried(before + self.rounds, self._nominal, self.weight)
        return False

    def global_counts(self) -> tuple[int, int]:
        """Micro-batches of the window on the rank that has most, and samples on all ranks; equal on all of them.

        Where a stream ends on all ranks, in its last window, the first is the mean of the ranks, rounded up.
        """
        job, loader, agreed = self._job, self._loader, self._agreement.known
        if self._is_full:
            return self.rounds, self.rounds * (loader.batch_size or 1) * job.num_shards
        rounds = self.rounds
        if not self._is_sized and agreed is not None:
            rounds = self._num_local if agreed.complete else math.ceil(agreed.micro_batches / job.num_ranks)
        sizes = [loader.round_size(index) for index in range(self.start, self.start + self.rounds)]
        if self._is_sized and None not in sizes:
            return rounds, sum(size for size in sizes if size is not None)
        if agreed is None:
            return rounds, self._num_samples * job.num_shards
        return rounds, round(agreed.samples * job.num_shards / job.num_ranks)

    def _sync_idle(self) -> None:
        self._begin_agreement()
        self._has_synced = True
        for prepared in self._job.prepared:
            self._job.strategy.sync_idle(prepared, has_called=self._has_called)

    def step(self) -> bool:
        """Rescale, clip, step, zero. A window of `fabric.windows` does it by itself after its last micro-batch.

        Ranks: all.

        Returns:
            False if no step was made: there was nothing to step on, or scaled gradients overflowed.
        """
        job = self._job
        can_step = self.rescale()
        if can_step and job.clips:
            job.clip_gradients()
        has_stepped = can_step and job.strategy.step(job.optimizers)
        if self.skipped != "carry":
            for optimizer in job.optimizers:
                zero_gradients(optimizer)
        if job.num_ranks == 1:
            self.is_stop_agreed, self.is_end_agreed = job.wants_stop(), job.wants_end()
        self.close()
        return has_stepped

    def close(self, *, ends_step: bool | None = None) -> None:
        """Note that the window is done, and tell the strategy. One without a step is counted, and said once.

        Ranks: all.

        Args:
            ends_step: An optimizer step is over; by default as `is_step` says.
        """
        job = self._job
        self.is_done = True
        if job.strategy.loss_scale is not None:
            if self.skipped == "carry":
                job.strategy.loss_scale.hold(job)  # in the next epoch the window is another object
            job.strategy.loss_scale.release(self, *(() if self.skipped == "carry" else (job,)))
        if self.is_step if ends_step is None else ends_step:
            job.strategy.end_step(job.prepared)
        if self.skipped in (None, "apart"):
            job.num_steps += 1
        else:
            job.note_skipped(self.skipped)
