"""What is said of a window whose losses or gradients are inf or nan."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from drivetrain.base.errors import NonFiniteError
from drivetrain.data.loader import Loader
from drivetrain.fabric.window_job import WindowJob

_log = logging.getLogger("drivetrain.fabric")


def refuse_nonfinite(window: Any, job: WindowJob, loader: Loader, losses: Sequence[Tensor]) -> None:
    """Raise, on all ranks, unless the step is to be skipped; then ranks with a bad loss say which samples made it.

    Args:
        window: Where it is.
        job: What it has in common with others.
        loader: Knows the samples.
        losses: Of this rank's micro-batches.

    Raises:
        NonFiniteError: It names the loss, or parameters, of this rank.
    """
    samples = _samples_at_fault(window, loader, losses)
    if job.nonfinite == "skip":
        if samples:
            _log.warning("Step %d is skipped: a loss is inf or nan (%s).", job.num_steps, samples)
        return
    bad = [
        name
        for one in job.prepared
        for name, p in one.original.named_parameters()
        if p.grad is not None and not bool(torch.isfinite(p.grad).all())
    ]
    named = f"; gradients of {', '.join(bad[:5])}{' and others' if len(bad) > 5 else ''}" if bad else ""
    loss = window.loss
    raise NonFiniteError(
        f"A loss or gradient is inf or nan in step {job.num_steps} ({_micro_batches(window)}): this rank's loss is "
        f"{None if loss is None else float(loss)}{f' ({samples})' if samples else ''}{named}.",
        code="non-finite",
        do="Look at the data of that step, lower the learning rate, or choose nonfinite='skip'.",
        rank=(job.collectives.rank, job.num_ranks),
    )


def _micro_batches(window: Any) -> str:
    """Where the window is in the data."""
    last = window.start + max(window.rounds, 1) - 1
    return f"micro-batch {window.start}" if last == window.start else f"micro-batches {window.start} to {last}"


def _samples_at_fault(window: Any, loader: Loader, losses: Sequence[Tensor]) -> str:
    """Samples of this rank's micro-batches whose loss is inf or nan, in words; empty if none are known."""
    if len(losses) != window.index + 1:
        return ""
    bad = [index for index, loss in enumerate(losses) if not bool(torch.isfinite(loss))]
    return "; ".join(filter(None, (loader.samples_text(window.start + index) for index in bad)))
