"""Where the time of a training goes: measured in a few windows, on a clock that the parts themselves move."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from drivetrain import Callback, CSVLogger, ModelCheckpoint, Trainer
from drivetrain.loop.step_timing import PERIOD
from drivetrain.profilers import Profiler
from drivetrain.profilers.time_spent import TimeSpent
from tests.unit.trainer.runs import QUIET, Classifier, ListLogger, are_equal, fit, loader, weights


class Clock:
    """Stands still but for what a part says that it takes."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class SlowData(IterableDataset[Any]):
    """Batches that take a while, the first of an epoch longer."""

    def __init__(self, clock: Clock, length: int, seconds: float) -> None:
        self.clock, self.length, self.seconds = clock, length, seconds

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Any]:
        self.clock.now += 10.0
        for _ in range(self.length):
            self.clock.now += self.seconds
            yield torch.ones(1, 8, dtype=torch.float64), torch.zeros(1, dtype=torch.int64)


class SlowSteps(Classifier):
    """Two seconds of forward, three of backward, five of the optimizer, seven of validation."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.clock.now += 2.0
        loss = self.loss_of(batch)
        loss.register_hook(self._count_backward)
        return loss

    def _count_backward(self, gradient: Tensor) -> Tensor:
        self.clock.now += 3.0
        return gradient

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.clock.now += 7.0

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        optimizer.register_step_post_hook(lambda *_: setattr(self.clock, "now", self.clock.now + 5.0))
        return optimizer


class SlowCallback(Callback):
    """Eleven seconds after each step."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def on_step_end(self, trainer: Any, pl_module: Any) -> None:
        self.clock.now += 11.0


def train(clock: Clock, data: Any, val_data: Any = None, **options: Any) -> Trainer:
    """Train with slow parts on a clock."""
    trainer = Trainer(**{**QUIET, "max_epochs": 1, **options})
    trainer.time_spent = TimeSpent(clock)
    trainer.fit(SlowSteps(clock), data, val_data)
    return trainer


@pytest.mark.parametrize("num_steps", [3, 2 * PERIOD + 2])
def test_the_parts_are_those_of_all_windows(num_steps: int) -> None:
    """A slow loader, or a slow callback, would not be found; or the parts would not add up to the whole."""
    clock = Clock()
    data = SlowData(clock, num_steps, 1.0)
    val_data = loader(4)
    trainer = train(clock, data, val_data, max_epochs=2, num_sanity_val_steps=0, callbacks=[SlowCallback(clock)])
    steps = 2 * num_steps
    assert trainer.time_spent.seconds == pytest.approx({
        "loader start": 22.0, "data": 1.0 * (steps - 2), "forward": 2.0 * steps, "backward": 3.0 * steps,
        "optimizer": 5.0 * steps, "callbacks": 11.0 * steps, "validation": 14.0,
    })  # fmt: skip
    assert trainer.time_spent.total_s == pytest.approx(34.0 + 22.0 * steps)


def test_a_slow_loader_is_what_takes_most() -> None:
    """The first question about a slow run would have no answer."""
    clock = Clock()
    trainer = train(clock, SlowData(clock, 200, 100.0))
    seconds = trainer.time_spent.seconds
    assert max(seconds, key=lambda name: seconds[name]) == "data"
    assert "data" in trainer.time_spent.summary() and seconds["data"] == pytest.approx(100.0 * 199)


def test_checkpoints_are_not_counted_for_callbacks(tmp_path: Path) -> None:
    """Callbacks would seem slow where saving is."""
    clock = Clock()

    class SlowSave(Callback):
        def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
            clock.now += 20.0

    keeper = ModelCheckpoint(tmp_path, every_n_train_steps=2, save_top_k=-1)
    data = SlowData(clock, 6, 1.0)
    trainer = train(clock, data, enable_checkpointing=None, callbacks=[SlowSave(), keeper])
    assert trainer.time_spent.seconds["checkpoint"] == pytest.approx(60.0)
    assert trainer.time_spent.seconds.get("callbacks", 0.0) == pytest.approx(0.0)


def test_a_slow_logger_is_found_by_its_rows(capsys: pytest.CaptureFixture[str]) -> None:
    """What a service takes would be taken for the loop; or a long training would end without its table."""
    clock = Clock()

    class SlowLogger(ListLogger):
        def log_metrics(self, metrics: Any, step: int | None = None) -> None:
            clock.now += 4.0
            super().log_metrics(metrics, step)

    class Logging(SlowSteps):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.log("one", 1.0)
            return super().training_step(batch, batch_idx)

    options = {**QUIET, "logger": SlowLogger(), "enable_progress_bar": True}
    trainer = Trainer(**options, max_epochs=1, log_every_n_steps=3)
    trainer.time_spent = TimeSpent(clock)
    trainer.fit(Logging(clock), SlowData(clock, 12, 1.0))
    assert trainer.time_spent.seconds["loggers"] == pytest.approx(16.0)
    assert "loggers           16.00 s" in capsys.readouterr().err


def test_the_time_is_written_to_the_runs_folder(tmp_path: Path) -> None:
    """A report of a run could not say where its time went."""
    logger = CSVLogger(tmp_path)
    _, trainer = fit(logger=logger)
    told = json.loads((Path(logger.log_dir or "") / "time_spent.json").read_text())
    assert told["steps"] == 6 and told["ranks"] == 1
    assert told["total_s"] == pytest.approx(sum(told["parts_s"].values()))
    assert told["parts_s"] == trainer.time_spent.seconds


class Noted(Profiler):
    """Notes what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.said: list[str] = []
        self.num_steps = 0

    def start(self, action_name: str) -> None:
        self.open.append(action_name)
        self.said.append(" > ".join(self.open))

    def stop(self, action_name: str) -> None:
        assert self.open.pop() == action_name

    def step(self) -> None:
        self.num_steps += 1


def test_windows_in_between_are_not_timed() -> None:
    """Timing would cost something in every step."""
    noted = Noted()

    class Rarely(Callback):
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            trainer.run.timing.period = PERIOD

    fit(data=loader(4 * (2 * PERIOD + 2)), profiler=noted, callbacks=[Rarely()])
    assert noted.num_steps == 4  # the first, and one of 61


@pytest.mark.parametrize(
    "options",
    [
        {}, {"accumulate_grad_batches": 4}, {"gradient_clip_val": 0.01}, {"max_steps": 5},
        {"global_batch_size": 8, "micro_batch_size": "auto"}, {"nonfinite": "skip"},
    ],
)  # fmt: skip
def test_a_run_with_a_profiler_is_the_same_run(options: dict[str, Any]) -> None:
    """What is looked at would be something else than what is run."""
    torch.manual_seed(0)
    plain, _ = fit(data=loader(26), max_epochs=2, **options)
    torch.manual_seed(0)
    noted = Noted()
    profiled, trainer = fit(data=loader(26), max_epochs=2, profiler=noted, **options)
    assert are_equal(weights(plain), weights(profiled))
    assert noted.num_steps == trainer.global_step and noted.open == []


def test_a_profiler_hears_of_the_parts_in_their_order() -> None:
    """A table of actions that are named for others, or that overlap."""

    class Hooked(Callback):
        def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
            with trainer.profiler.profile("my own"):
                pass

    noted = Noted()
    fit(data=loader(8), profiler=noted, accumulate_grad_batches=2, callbacks=[Hooked()])
    hook = ["callbacks/on_after_backward", "callbacks/on_after_backward > my own"]
    of_micro_batch = ["forward", "backward", *hook]
    window = [*of_micro_batch, "data", *of_micro_batch, "data", "sync", "optimizer"]
    assert noted.said == ["loader start", "loop", *(f"loop > {name}" for name in ["loader start", *window])]


def test_an_exception_is_not_hidden_by_an_action_that_is_open() -> None:
    """The profiler's own complaint would stand in the place of the user's error."""

    class Failing(Callback):
        def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
            raise ValueError("the user's")

    with pytest.raises(ValueError, match="the user's"):
        fit(profiler=Noted(), callbacks=[Failing()])
