"""The window of most steps on several ranks: one micro-batch on each, synced, with its nominal weight on all of them.

As a rule no rank has anything to tell the others: that is a message of one word. Any rank that has something (another
weight, a wish to stop, no loss) sends all of it, and then the window is like any other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from drivetrain.comm.shared_board import Usual
from drivetrain.data.loader import Loader
from drivetrain.fabric.agreement import Agreement
from drivetrain.fabric.single_window import OneBatchWindow
from drivetrain.fabric.weighted_loss import has_loss, read_weight, scale_loss
from drivetrain.fabric.window_job import WindowJob


class SyncedWindow(OneBatchWindow):
    """On several ranks that sync gradients in the backward of each micro-batch.

    Args:
        job: What it has in common with others.
        loader: Knows the sizes of micro-batches.
        batches: The epoch, as far as it is still to come.
        start: Which micro-batch of the epoch it is.
        samples: How many it holds on each rank.
        usual: What the ranks agree on as a rule.
    """

    _is_alone = False
    _is_nominal = False

    def __init__(
        self, job: WindowJob, loader: Loader, batches: Iterator[Any], start: int, samples: int, usual: Usual
    ) -> None:
        super().__init__(job, loader, batches, start, samples)
        self._usual = usual
        self._nominal = self._num_samples = samples
        self._agreement = Agreement(job.collectives)

    def __iter__(self) -> Iterator[Any]:
        """The micro-batch, inside its gradient-sync block."""
        job = self._job
        batch = self._take()
        self._has_called = True
        with job.strategy.gradient_sync(job.prepared, True):
            yield batch

    def backward(self, loss: Tensor | None, weight: Any = None) -> None:
        """Run backward on the mean loss of the micro-batch.

        Ranks: all, equally often.
        """
        job, samples = self._job, self.samples
        weight = samples if weight is None else read_weight(weight)
        if not has_loss(loss, weight):
            self._sync_idle()
            return
        assert loss is not None
        self._note(loss, weight)
        self._is_nominal = weight is samples or (not isinstance(weight, Tensor) and weight == samples)
        if not self._is_nominal:
            loss = scale_loss(loss, weight, samples)
        self._begin_agreement()
        self._has_synced = True
        job.strategy.backward(loss, job.prepared[0] if len(job.prepared) == 1 else None)

    def _begin_agreement(self) -> None:
        job, usual = self._job, self._usual
        is_usual = self._is_nominal and job.nonfinite == "ignore" and not job.wants_stop() and not job.wants_end()
        if usual is not None and is_usual and not self._agreement.has_begun:
            self._agreement.begin(usual.values, usual)
        else:
            super()._begin_agreement()

    def _rescale_synced(self) -> bool:
        usual = self._usual
        is_usual = usual is not None and self._agreement.result() is usual.sums
        return is_usual or super()._rescale_synced()

    @staticmethod
    def fits(job: WindowJob) -> bool:
        """Windows of a job can be of this kind."""
        traits = job.strategy.traits
        is_synced = traits.syncs_gradients and not traits.communicates_in_forward and job.strategy.loss_scale is None
        return job.num_ranks > 1 and is_synced and job.finder is None and job.remainder != "drop"
