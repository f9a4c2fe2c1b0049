"""The loops of validation, test and prediction: each sample once, on some rank, without gradients.

on_<stage>_start, on_<stage>_epoch_start
for each loader, for each batch: <stage>_step
on_<stage>_epoch_end, metrics are reduced over ranks, on_<stage>_end
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from drivetrain.base.progress import Progress
from drivetrain.base.tree import batch_size_of
from drivetrain.data.loader import Loader
from drivetrain.fabric.evaluation_batches import evaluation_batches
from drivetrain.loggers.logger import Logger
from drivetrain.loop.agreed_end import AgreedEnd
from drivetrain.loop.evaluation_modes import eval_mode
from drivetrain.loop.hooks import Hook, Hooks
from drivetrain.loop.metrics import MetricStore
from drivetrain.loop.rows import write
from drivetrain.loop.step_arguments import is_callable_with, num_step_arguments
from drivetrain.strategies.prepared import Prepared
from drivetrain.strategies.strategy import Strategy

_EVENTS = {"validate": "validation", "test": "test", "predict": "predict"}


@dataclass
class EvaluateLoop:
    """Runs one stage over its loaders.

    Attributes:
        stage: `"validate"`, `"test"` or `"predict"`.
        strategy: How the step is called.
        prepared: The module.
        loaders: One or several.
        limits: Batches of each loader at most; `None` for all.
        hooks: Bound for this run.
        metrics: Where `self.log` goes.
        loggers: Written to after reduction.
        progress: The step under which values are written.
        inference_mode: `torch.inference_mode` instead of `torch.no_grad`.
        agreed_end: Lets it be left between two batches; what was seen of it is dropped then.
        predictions: What `predict_step` returned, for each loader; of this rank.
        loader_index: The loader that runs.
        num_done: Batches of it that are done.
    """

    stage: str
    strategy: Strategy
    prepared: Prepared
    loaders: Sequence[Loader]
    limits: Sequence[int | None]
    hooks: Hooks
    metrics: MetricStore
    loggers: Sequence[Logger]
    progress: Progress
    inference_mode: bool = True
    keeps_predictions: bool = True
    agreed_end: AgreedEnd | None = None
    predictions: list[list[Any]] = field(default_factory=list)
    loader_index: int = 0
    num_done: int = 0

    def run(self, *, is_written: bool = True) -> list[dict[str, float]]:
        """Evaluate.

        Ranks: all; how many batches each has may differ.

        Args:
            is_written: Write the values to the loggers.

        Returns:
            For each loader the reduced values; nothing if it was left.
        """
        event = _EVENTS[self.stage]
        no_gradients = torch.inference_mode() if self.inference_mode else torch.no_grad()
        with self.strategy.agreed_model(self.prepared), no_gradients, eval_mode(self.prepared.original, event):
            self._fire(f"on_{event}_start")
            self.metrics.begin_epoch("evaluate")
            self._fire(f"on_{event}_epoch_start")
            self.predictions = [self._run_loader(index, loader) for index, loader in enumerate(self.loaders)]
            if self.is_left:
                return []
            self.metrics.end_evaluation()
            values = self.metrics.report_epoch(is_last=False)  # for the hooks that follow
            reported = self.metrics.reported
            self._fire(f"on_{event}_epoch_end")
            values.update(self.metrics.report_epoch())
            reported.update(self.metrics.reported)
            self.metrics.place = "none"
            if is_written:
                write(self.loggers, self.metrics, values, self.progress)
            self.hooks.run(f"on_{event}_end")
        return self._by_loader(reported)

    @property
    def is_left(self) -> bool:
        """It has not come to its end, since the run was told to end."""
        return self.agreed_end is not None and self.agreed_end.is_agreed

    def _run_loader(self, index: int, loader: Loader) -> list[Any]:
        strategy, prepared, metrics = self.strategy, self.prepared, self.metrics
        event = _EVENTS[self.stage]
        step = f"{event}_step"
        batch_start = self._with_index(f"on_{event}_batch_start", index, 2)
        batch_end = self._with_index(f"on_{event}_batch_end", index, 3)
        metrics.loader_suffix = f"/dataloader_idx_{index}" if len(self.loaders) > 1 else ""
        num_arguments = num_step_arguments(prepared.original, step, 3 if len(self.loaders) > 1 else 2)
        limit, self.loader_index, self.num_done = self.limits[index], index, 0
        kept: list[Any] = []
        if limit == 0 or self.is_left:
            return kept
        leaves: dict[str, Any] = {}
        if self.agreed_end is not None:
            self.agreed_end.begin()
            leaves["leaves_after"] = self.agreed_end.leaves_after
        for number, batch in evaluation_batches(loader, strategy, prepared, method=step, limit=limit, **leaves):
            metrics.begin_window()
            for hook, loader_index in batch_start:
                hook(batch, number, *loader_index)
            size = loader.local_size(number)
            metrics.samples = batch_size_of(batch) if size is None else size
            output = strategy.call(prepared, step, *(batch, number, index)[:num_arguments])
            self.num_done = number + 1
            for hook, loader_index in batch_end:
                hook(output, batch, number, *loader_index)
            metrics.end_micro_batch(metrics.samples)
            if self.stage == "predict" and self.keeps_predictions:
                kept.append(output)
        if self.agreed_end is not None:
            self.agreed_end.wait_for_others()
        return kept

    def _with_index(self, event: str, index: int, num_others: int) -> list[tuple[Hook, tuple[int, ...]]]:
        """Hooks with the loader's number where they get it: with several loaders, or if they need it."""
        is_one = len(self.loaders) == 1
        hooks: Sequence[Hook] = getattr(self.hooks, event)
        return [(one, () if is_one and is_callable_with(one, num_others) else (index,)) for one in hooks]

    def _fire(self, event: str) -> None:
        for hook in getattr(self.hooks, event):
            hook()

    def _by_loader(self, values: dict[str, float]) -> list[dict[str, float]]:
        if len(self.loaders) <= 1:
            return [values]
        marks = [f"/dataloader_idx_{index}" for index in range(len(self.loaders))]
        return [
            {n: v for n, v in values.items() if n.endswith(mark) or not any(n.endswith(one) for one in marks)}
            for mark in marks
        ]
