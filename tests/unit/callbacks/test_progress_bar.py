from __future__ import annotations

import io
import logging
import math
from pathlib import Path
from typing import Any

import pytest

from drivetrain.callbacks.progress_display import Display, LineDisplay, LiveDisplay, Status, open_display
from drivetrain.callbacks.rich_progress_bar import RichProgressBar
from tests.unit.callbacks.fake_trainer import FakeTrainer


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class NoteDisplay(Display):
    interval_s = 1.0

    def __init__(self) -> None:
        self.shown: list[Status] = []
        self.removed: list[str] = []
        self.num_closed = 0

    def show(self, status: Status) -> None:
        self.shown.append(status)

    def remove(self, key: str) -> None:
        self.removed.append(key)

    def close(self) -> None:
        self.num_closed += 1


class NotedBar(RichProgressBar):
    def __init__(self, clock: Clock) -> None:
        super().__init__(clock=clock)
        self.display = NoteDisplay()

    def open_display(self) -> Display:
        return self.display


class BrokenDisplay(Display):
    interval_s = 0.0

    def show(self, status: Status) -> None:
        raise BrokenPipeError("the screen is gone")

    def close(self) -> None:
        raise BrokenPipeError("the screen is gone")


class BrokenBar(RichProgressBar):
    def open_display(self) -> Display:
        return BrokenDisplay()


def evaluate(trainer: FakeTrainer, stage: str, sizes: list[int], *, clock: Clock | None = None) -> None:
    trainer.fire(f"on_{stage}_start")
    for loader, size in enumerate(sizes):
        for batch in range(size):
            if clock is not None:
                clock.now += 1.0
            trainer.fire(f"on_{stage}_batch_end", None, None, batch, loader)
    trainer.fire(f"on_{stage}_end")


@pytest.mark.parametrize("steps_per_epoch", [1000, 100, 10, 1])
@pytest.mark.parametrize("seconds_per_step", [0.0, 0.1, 0.3])
def test_a_thousand_steps_are_less_than_fifty_lines(
    tmp_path: Path, steps_per_epoch: int, seconds_per_step: float
) -> None:
    """Logs of a cluster in which nothing is found."""
    clock, file = Clock(), io.StringIO()
    trainer = FakeTrainer(tmp_path, num_training_batches=steps_per_epoch, num_val_batches=[2])
    trainer.max_epochs = 1000 // steps_per_epoch
    trainer.start(RichProgressBar(file=file, clock=clock))
    for _ in range(trainer.max_epochs):
        for _ in range(steps_per_epoch):
            clock.now += seconds_per_step
            trainer.step()
        evaluate(trainer, "validation", [2])
        trainer.end_epoch()
    trainer.finish()
    lines = file.getvalue().splitlines()
    assert 0 < len(lines) < 50
    assert f"{steps_per_epoch}/{steps_per_epoch} steps" in lines[-1]
    assert lines[-1].startswith(f"Epoch {trainer.max_epochs}/{trainer.max_epochs}")


def test_each_epoch_of_a_short_run_has_a_line(tmp_path: Path) -> None:
    """A demo that ends without having said anything."""
    clock, file = Clock(), io.StringIO()
    trainer = FakeTrainer(tmp_path, num_training_batches=2)
    trainer.bar_values = {"loss": 0.123456}
    trainer.start(RichProgressBar(file=file, clock=clock))
    for _ in range(2):
        clock.now += 0.5
        trainer.step(2)
        trainer.end_epoch()
    trainer.finish()
    assert file.getvalue().splitlines() == [
        "Epoch 1/2: 2/2 steps, 4 steps/s, loss=0.1235",
        "Epoch 2/2: 2/2 steps, 4 steps/s, loss=0.1235",
    ]


def test_until_it_is_time_a_batch_costs_a_look_at_the_clock(tmp_path: Path) -> None:
    """Values read back from the device at each step."""

    class Untouchable:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(f"{name} was read")

    clock = Clock()
    trainer, bar = FakeTrainer(tmp_path), NotedBar(clock)
    trainer.start(bar)
    clock.now = 0.9
    bar.on_train_batch_end(Untouchable(), Untouchable(), None, None, 0)
    bar.on_validation_batch_end(Untouchable(), Untouchable(), None, None, 0)
    assert bar.display.shown == []
    clock.now = 1.0
    trainer.step(3)
    assert len(bar.display.shown) == trainer.num_bar_reads == 1


def test_it_shows_steps_speed_and_time_left(tmp_path: Path) -> None:
    """A bar of micro-batches, or a speed that counts the time of validation."""
    clock = Clock()
    trainer, bar = FakeTrainer(tmp_path, num_training_batches=100, num_val_batches=[3]), NotedBar(clock)
    trainer.accumulate_grad_batches = 2
    trainer.start(bar)
    clock.now = 5.0
    trainer.progress.step, trainer.progress.epoch_micro_step = 10, 20
    trainer.fire("on_train_batch_end", None, None, 19)
    status = bar.display.shown[-1]
    assert (status.count(), status.per_second, status.details()[:2]) == (
        "10/50 steps",
        2.0,
        ["2 steps/s", "0:00:20 left"],
    )
    trainer.fire("on_validation_start")
    clock.now += 100.0
    trainer.fire("on_validation_end")
    clock.now += 5.0
    trainer.progress.step, trainer.progress.epoch_micro_step = 20, 40
    trainer.fire("on_train_batch_end", None, None, 39)
    assert bar.display.shown[-1].per_second == 2.0


def test_a_resumed_run_begins_where_it_stands(tmp_path: Path) -> None:
    """A bar that begins at 0, with the speed of all steps before the resume in its first second."""
    clock = Clock()
    trainer, bar = FakeTrainer(tmp_path, num_training_batches=100), NotedBar(clock)
    trainer.progress.step, trainer.progress.epoch_micro_step = 1040, 40
    trainer.progress.epoch = 10
    trainer.max_epochs, trainer.max_steps = 20, 1050
    trainer.start(bar)
    clock.now = 2.0
    trainer.step(2)
    status = bar.display.shown[-1]
    assert (status.title, status.count()) == ("Epoch 11/20", "41/50 steps")
    assert status.per_second == 0.5


def test_an_epoch_of_unknown_length_has_no_total(tmp_path: Path) -> None:
    """`340/inf`."""
    clock = Clock()
    trainer, bar = FakeTrainer(tmp_path, num_training_batches=math.inf), NotedBar(clock)
    trainer.max_epochs = -1
    trainer.start(bar)
    clock.now = 2.0
    trainer.step()
    assert (bar.display.shown[-1].title, bar.display.shown[-1].count()) == ("Epoch 1", "1 steps")


def test_evaluation_counts_over_all_loaders(tmp_path: Path) -> None:
    """A bar that runs to 100% twice, or past it."""
    for stage, title in (("validation", "Validation"), ("test", "Test"), ("predict", "Prediction")):
        clock = Clock()
        trainer, bar = FakeTrainer(tmp_path, num_val_batches=[2, 3]), NotedBar(clock)
        trainer.callbacks = [bar]
        trainer.state.fn = stage
        trainer.fire("setup", stage)
        evaluate(trainer, stage, [2, 3], clock=clock)
        trainer.fire("teardown", stage)
        assert {status.title for status in bar.display.shown} == {title}
        assert [status.count() for status in bar.display.shown] == [
            f"{number}/5 batches" for number in (1, 2, 3, 4, 5, 5)
        ]
        assert bar.display.num_closed == 1


def test_the_sanity_check_has_its_own_total_and_goes_away(tmp_path: Path) -> None:
    """A sanity check of 2 batches shown as 2 of 1000."""
    clock = Clock()
    trainer, bar = FakeTrainer(tmp_path, num_val_batches=[1000]), NotedBar(clock)
    trainer.callbacks = [bar]
    trainer.fire("setup", "fit")
    trainer.sanity_checking = True
    evaluate(trainer, "validation", [2], clock=clock)
    assert [(s.title, s.count()) for s in bar.display.shown] == [
        ("Sanity check", "1/2 batches"),
        ("Sanity check", "2/2 batches"),
    ]
    assert bar.display.removed == ["evaluation"]


def test_a_screen_that_fails_ends_the_bar_and_not_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A closed terminal that ends a training of days; or a message at each step."""
    trainer = FakeTrainer(tmp_path, num_val_batches=[1])
    with caplog.at_level(logging.WARNING):
        trainer.start(BrokenBar(clock=Clock()))
        trainer.step(5)
        evaluate(trainer, "validation", [1])
        trainer.end_epoch()
        trainer.finish()
    assert [record.getMessage() for record in caplog.records] == [
        "The progress bar failed and is off: BrokenPipeError: the screen is gone"
    ]


def test_a_closed_file_is_a_screen_that_fails(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The real display, and not only one of a test, may raise."""
    file, clock = io.StringIO(), Clock()
    trainer = FakeTrainer(tmp_path)
    with caplog.at_level(logging.WARNING):
        trainer.start(RichProgressBar(file=file, clock=clock))
        file.close()
        clock.now = 60.0
        trainer.step()
        trainer.finish()
    assert len(caplog.records) == 1


def test_only_rank_zero_shows_anything(tmp_path: Path) -> None:
    """As many bars as ranks."""
    clock = Clock()
    trainer, bar = FakeTrainer(tmp_path), NotedBar(clock)
    trainer.collectives.rank = 1
    trainer.start(bar)
    clock.now = 100.0
    trainer.step()
    trainer.end_epoch()
    trainer.finish()
    assert bar.display.shown == [] and trainer.num_bar_reads == 0


def test_an_exception_leaves_the_screen_in_order(tmp_path: Path) -> None:
    """A terminal without a cursor, and a traceback drawn over by a bar."""
    trainer, bar = FakeTrainer(tmp_path), NotedBar(Clock())
    trainer.start(bar)
    trainer.fire("on_exception", ValueError())
    trainer.fire("teardown", "fit")
    assert bar.display.num_closed == 1


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_has_a_live_bar_and_a_file_has_lines() -> None:
    """Control characters in a log file."""
    from rich.console import Console

    assert isinstance(open_display(io.StringIO(), refresh_s=1.0, line_every_s=1.0), LineDisplay)
    file = Terminal()
    display = LiveDisplay(Console(file=file, force_terminal=True, width=100), 1.0)
    display.show(Status("train", "Epoch 1/2", 5, 10, "steps", 2.0, {"[b]loss": 0.5}))
    display.show(Status("evaluation", "Validation", 1, 2, "batches"))
    display.remove("evaluation")
    display.close()
    text = file.getvalue()
    for part in ("Epoch 1/2", "5/10 steps, 2 steps/s, 0:00:02 left, [b]loss=0.5", "Validation"):
        assert part in text
