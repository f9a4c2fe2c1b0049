"""A trainer that runs nothing: it has what a callback may read, and fires hooks in the order of the real one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from drivetrain.base.progress import Progress
from drivetrain.comm.collectives import Collectives, SoloCollectives
from drivetrain.loop.callback import Callback


class ScriptedCollectives(SoloCollectives):
    """One of two ranks in one process: rank 0's messages are kept, rank 1 is told them afterwards."""

    def __init__(self, rank: int, messages: list[Any]) -> None:
        super().__init__()
        self.rank = rank
        self.world_size = 2
        self.messages = messages

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        if self.rank == 0:
            self.messages.append(obj)
            return obj
        return self.messages.pop(0)


class FakeTrainer:
    def __init__(
        self,
        root: Path,
        *,
        num_training_batches: float = 10,
        num_val_batches: Sequence[float] = (),
        collectives: Collectives | None = None,
    ) -> None:
        self.default_root_dir = str(root)
        self.log_dir: str | None = None
        self.progress = Progress()
        self.collectives = collectives if collectives is not None else SoloCollectives()
        self.callback_metrics: dict[str, Tensor] = {}
        self.bar_values: dict[str, float] = {}
        self.num_bar_reads = 0
        self.loggers: list[Any] = []
        self.num_training_batches = num_training_batches
        self.num_val_batches = self.num_test_batches = self.num_predict_batches = list(num_val_batches)
        self.num_sanity_val_steps = 2
        self.accumulate_grad_batches = 1
        self.log_every_n_steps = 1
        self.max_epochs, self.max_steps = 2, -1
        self.sanity_checking = self.fast_dev_run = self.should_stop = self.was_preempted = False
        self.state = SimpleNamespace(fn="fit", stage="fit")
        self.optimizers: list[Any] = []
        self.lr_scheduler_configs: list[Any] = []
        self.module = nn.Linear(1, 1)
        self.callbacks: list[Callback] = []
        self.saved: list[str] = []
        self.save_error: BaseException | None = None

    @property
    def global_step(self) -> int:
        return self.progress.step

    @property
    def is_log_step(self) -> bool:
        return self.global_step % self.log_every_n_steps == 0

    @property
    def current_epoch(self) -> int:
        return self.progress.epoch

    @property
    def global_rank(self) -> int:
        return self.collectives.rank

    @property
    def world_size(self) -> int:
        return self.collectives.world_size

    @property
    def is_global_zero(self) -> bool:
        return self.global_rank == 0

    @property
    def progress_bar_metrics(self) -> dict[str, float]:
        self.num_bar_reads += 1
        return self.bar_values

    def save_checkpoint(self, filepath: str, weights_only: bool = False, *, wait: bool = True) -> None:
        """Like the real one, whole or not at all, and with the states of the callbacks in it."""
        if self.save_error is not None:
            raise self.save_error
        self.saved.append(Path(filepath).name)
        if not self.is_global_zero:
            return
        shutil.rmtree(filepath, ignore_errors=True)
        Path(filepath).mkdir(parents=True)
        torch.save([one.state_dict() for one in self.callbacks], Path(filepath) / "callbacks.pt")
        (Path(filepath) / "manifest.json").write_text(json.dumps({"step": self.global_step}))

    # ---------------------------------------------------------------- a run

    def fire(self, event: str, *arguments: Any) -> None:
        for callback in self.callbacks:
            getattr(callback, event)(self, self.module, *arguments)

    def start(self, *callbacks: Callback, restore: Path | None = None) -> None:
        self.callbacks = list(callbacks)
        self.fire("setup", "fit")
        if restore is not None:
            states = torch.load(restore / "callbacks.pt", weights_only=True)
            for callback, state in zip(self.callbacks, states, strict=True):
                callback.load_state_dict(state)
            self.progress.step = json.loads((restore / "manifest.json").read_text())["step"]
        self.fire("on_fit_start")
        self.fire("on_train_start")

    def step(self, count: int = 1, **metrics: float) -> None:
        for _ in range(count):
            self.report(metrics)
            self.progress.step += 1
            self.progress.epoch_micro_step += 1
            self.fire("on_step_end")
            self.fire("on_train_batch_end", None, None, self.progress.epoch_micro_step - 1)

    def validate(self, **metrics: float) -> None:
        self.fire("on_validation_start")
        self.report(metrics)
        self.fire("on_validation_end")

    def end_epoch(self, **metrics: float) -> None:
        self.report(metrics)
        self.fire("on_train_epoch_end")
        self.progress.epoch += 1
        self.progress.epoch_micro_step = 0

    def finish(self) -> None:
        self.fire("on_train_end")
        self.fire("on_fit_end")
        self.fire("teardown", "fit")

    def report(self, metrics: Mapping[str, float]) -> None:
        self.callback_metrics.update({name: torch.tensor(value) for name, value in metrics.items()})
