"""A window that splits its micro-batches until they fit into memory, with the same step on all ranks.

    for part in parts of this rank's share:   # as many as memory asks for
        forward, backward                     # nothing is sent, so that a rank may fail in any of them
    agree                                     # one small message: has any rank run out of memory?
        if so: forget the gradients, halve the parts, begin again
    sync, rescale, clip, step                 # as ever

The gradients are synced after the last backward, not in it: a rank that fails would leave the others waiting.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from drivetrain.base.rng import capture_rng, restore_rng
from drivetrain.fabric.agreement import Agreement
from drivetrain.fabric.window import END, Window
from drivetrain.fabric.window_job import WindowJob
from drivetrain.strategies.prepared import Prepared


class AutoWindow(Window):
    """A window of one share for each rank, run in parts that fit."""

    def __iter__(self) -> Iterator[Any]:
        """The parts; all of them again when any rank ran out of memory."""
        job = self._job
        assert job.finder is not None
        finder = self._finder = job.finder
        finder.error = None
        finder.on_begin()
        share = self._take()
        buffers = [(b, b.detach().clone()) for one in job.prepared for b in one.original.buffers()]
        state = capture_rng()
        while True:
            yield from self._attempt(share)
            if not (self.agree().out_of_memory if job.num_ranks > 1 else finder.error is not None):
                return
            self._forget_attempt()
            for buffer, value in buffers:
                buffer.copy_(value)
            restore_rng(state)
            largest = -(-(self._loader.round_size(self.start) or 1) // job.num_shards)
            finder.shrink(largest, rank=(job.collectives.rank, job.num_ranks))
            if job.collectives.is_global_zero:
                print(f"micro_batch_size: out of memory; {finder.size} samples from here on")
            finder.on_retry()

    def _attempt(self, share: Any) -> Iterator[Any]:
        if share is END:
            return
        job, finder = self._job, self._finder
        parts = list(finder.parts(share))
        for number, (part, size) in enumerate(parts):
            self.samples = finder.samples = size
            self._weighed = -1
            self.is_last = number == len(parts) - 1
            with job.strategy.gradient_sync(job.prepared, False):
                yield part
            if finder.error is not None:
                return

    def _forget_attempt(self) -> None:
        for parameter in self._job.parameters:
            parameter.grad = None
        self._losses.clear()
        self.weight = 0
        self._agreement = Agreement(self._job.collectives)

    def backward(self, loss: Tensor | None, weight: Any = None) -> None:
        """Run backward on the mean loss of a part; running out of memory is noted.

        Ranks: any (nothing is sent).
        """
        if self._finder.error is None:
            self._finder.guarded(super().backward, loss, weight)

    def _before_backward(self) -> None:
        """Nothing is synced in it."""

    def _add_nothing(self) -> None:
        """Nothing is synced in it."""

    def _is_out_of_memory(self) -> bool:
        return self._finder.error is not None

    def _sync_idle(self) -> None:
        self._begin_agreement()
        self._has_synced = True
        self._job.strategy.sync_gradients(self._job.parameters)


def guarded_call(job: WindowJob) -> Callable[..., Any]:
    """`Strategy.call` for parts of such a window: beside the wrapper, and `None` where memory ran out.

    A wrapper may send something in its first forward, which a rank that fails before it would miss.
    """
    finder, running = job.finder, job.strategy.running
    assert finder is not None
    context = running.precision.context_for(running.device.type)

    def run(prepared: Prepared, method: str, *args: Any) -> Any:
        with context():
            return getattr(prepared.original, method)(*args)

    return functools.partial(finder.guarded, run)
