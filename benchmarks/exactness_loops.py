"""The tasks of the exactness benchmark, trained with each peer. Run as a program, it trains with one of them.

python -m benchmarks.exactness_loops PEER [--epochs N]
"""

from __future__ import annotations

import argparse
import importlib
import os
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from benchmarks.child import answer
from benchmarks.exactness_tasks import (
    RANKS_EPOCHS,
    RANKS_SAMPLES_OF,
    WINDOW_SAMPLES_OF,
    Task,
    num_ranks,
    trained_parameters,
    worst_step_error,
)


def hand_written(task: Task, *, joins: bool = False) -> None:
    """The usual loop: each loss is divided by the micro-batches of a full window."""
    module: Any = task.model
    if num_ranks() > 1:
        if not dist.is_initialized():
            dist.init_process_group("gloo")
        module = nn.parallel.DistributedDataParallel(task.model)
        task.model = module  # `loss_of` calls it
    loader = task.make_sharded_loader()
    for epoch in range(task.num_epochs):
        if hasattr(loader.sampler, "set_epoch"):
            loader.sampler.set_epoch(epoch)
        with module.join() if joins else nullcontext():
            for index, batch in enumerate(loader, start=1):
                is_last = index % task.window == 0 or index == len(loader)
                if num_ranks() > 1:
                    module.require_backward_grad_sync = is_last
                loss, _ = task.loss_of(batch)
                (loss / task.window).backward()
                if is_last:
                    if task.max_norm is not None:
                        nn.utils.clip_grad_norm_(module.parameters(), task.max_norm)
                    task.optimizer.step()
                    task.optimizer.zero_grad()


def hand_written_join(task: Task) -> None:
    """The same inside of DDP's `join`."""
    hand_written(task, joins=True)


def drivetrain_windows(task: Task) -> None:
    """drivetrain's `Fabric.windows`."""
    import drivetrain

    fabric = drivetrain.Fabric(accelerator="cpu", devices=num_ranks())
    fabric.launch()
    task.model, optimizer = fabric.setup(task.model, task.optimizer)
    loader = fabric.setup_dataloaders(task.make_loader(), use_distributed_sampler=task.own is None)
    for _ in range(task.num_epochs):
        for window in fabric.windows(loader, task.model, optimizer, size=task.window, max_norm=task.max_norm):
            for batch in window:
                loss, weight = task.loss_of(batch)
                window.backward(loss, weight if task.has_weights else None)
    task.model = task.model.original  # type: ignore[assignment]
    fabric.close()


def _train(library: Any, module_class: type, task: Task, loader: Any, *, has_weights: bool = False) -> None:
    class Regression(module_class):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = task.model

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss, weight = task.loss_of(batch)
            return {"loss": loss, "weight": weight} if has_weights else loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return task.optimizer

    with tempfile.TemporaryDirectory() as directory:
        library.Trainer(
            max_epochs=task.num_epochs, accelerator="cpu", devices=num_ranks(),
            strategy="ddp" if num_ranks() > 1 else "auto", accumulate_grad_batches=task.window,
            gradient_clip_val=task.max_norm, logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, default_root_dir=directory, use_distributed_sampler=task.own is None,
        ).fit(Regression(), loader)  # fmt: skip


def drivetrain_trainer(task: Task) -> None:
    """drivetrain's `Trainer`; with tokens the step returns their number as the weight of its loss."""
    import drivetrain

    _train(drivetrain, drivetrain.Module, task, task.make_loader(), has_weights=task.has_weights)


def lightning_trainer(task: Task) -> None:
    """Lightning's `Trainer`. On several ranks it would shuffle a loader that is not: it is given a sharded one then."""
    library = importlib.import_module("lightning.pytorch")
    loader = task.make_loader() if task.is_shuffled else task.make_sharded_loader()
    _train(library, library.LightningModule, task, loader)


def accelerate(task: Task) -> None:
    """Accelerate with `accumulate`; a loader that is sharded already is not given to it."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=task.window)
    prepared, optimizer = accelerator.prepare(task.model, task.optimizer)
    loader = task.make_loader() if task.own is not None else accelerator.prepare(task.make_loader())
    task.model = prepared
    for _ in range(task.num_epochs):
        for batch in loader:
            with accelerator.accumulate(prepared):
                loss, _ = task.loss_of(batch)
                accelerator.backward(loss)
                if accelerator.sync_gradients and task.max_norm is not None:
                    accelerator.clip_grad_norm_(prepared.parameters(), task.max_norm)
                optimizer.step()
                optimizer.zero_grad()


LOOPS: dict[str, Callable[[Task], None]] = {
    loop.__name__: loop
    for loop in (
        hand_written, hand_written_join, drivetrain_trainer, drivetrain_windows, lightning_trainer, accelerate,
    )
}  # fmt: skip


def main() -> None:
    """Train all scenarios with one peer; rank 0 prints what came of them. Steps are judged in one process only."""
    parser = argparse.ArgumentParser()
    parser.add_argument("peer", choices=LOOPS)
    parser.add_argument("--epochs", type=int, default=RANKS_EPOCHS)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    train = LOOPS[asked.peer]

    def measure() -> dict[str, Any] | None:
        reading: dict[str, Any] = {"windows": {}}
        if num_ranks() == 1:
            reading["windows"] = {scenario: worst_step_error(scenario, train) for scenario in WINDOW_SAMPLES_OF}
        reading["ranks"] = {
            scenario: trained_parameters(scenario, train, asked.epochs) for scenario in RANKS_SAMPLES_OF
        }
        if dist.is_initialized():
            dist.destroy_process_group()
        return reading if os.environ.get("RANK", "0") == "0" else None

    answer(measure)


if __name__ == "__main__":
    main()
