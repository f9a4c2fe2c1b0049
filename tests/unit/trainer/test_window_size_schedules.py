"""Windows that change their size during a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from drivetrain import Callback, ConfigError, GradientAccumulationScheduler, Trainer
from tests.unit.trainer.runs import QUIET, Classifier, are_equal, fit, loader, weights


class Sizes(Callback):
    """Notes the micro-batches of each window."""

    def __init__(self, path: Path | None = None, stop: int = -1) -> None:
        self.sizes: list[int] = []
        self.path, self.stop, self.before = path, stop, 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.before = trainer.micro_step

    def on_step_end(self, trainer: Any, pl_module: Any) -> None:
        self.sizes.append(trainer.micro_step - self.before)
        self.before = trainer.micro_step
        if trainer.global_step == self.stop:
            trainer.save_checkpoint(self.path)
            trainer.should_stop = True


BY_EPOCH = {0: 3, 1: 2, 3: 1}
BY_STEP = [1, 2, 3, 4, 5]
SCHEDULES: dict[str, tuple[Any, list[int]]] = {
    "by epoch": (BY_EPOCH, [3, 3, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1]),
    "by step": (lambda step: BY_STEP[min(step, 4)], [1, 2, 3, 4, 2, 5, 1, 5, 1]),
}


def run(how: str, schedule: Any, sizes: Sizes, **options: Any) -> tuple[Any, Trainer]:
    is_callback = how == "callback"
    callbacks: list[Any] = [sizes, GradientAccumulationScheduler(schedule)] if is_callback else [sizes]
    more = {} if is_callback else {"accumulate_grad_batches": schedule}
    module = Classifier()
    trainer = Trainer(**QUIET, max_epochs=4, callbacks=callbacks, **more)
    trainer.fit(module, loader(), **options)
    return module, trainer


@pytest.mark.parametrize("how", ["argument", "callback"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_windows_have_the_sizes_of_the_schedule(how: str, name: str) -> None:
    """The first windows of an epoch, or all, would keep the size that was before."""
    schedule, expected = SCHEDULES[name]
    sizes = Sizes()
    _, trainer = run(how, schedule, sizes)
    assert sizes.sizes == expected
    assert trainer.estimated_stepping_batches == trainer.global_step == len(expected)


@pytest.mark.parametrize("stop", [1, 3, 4, 8, 9])
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_resumed_run_goes_on_with_the_sizes_of_the_whole_one(name: str, stop: int, tmp_path: Path) -> None:
    """The rest of the epoch would be cut in another way, and the weights be others."""
    schedule, expected = SCHEDULES[name]
    whole, _ = run("argument", schedule, Sizes())
    first, second = Sizes(tmp_path / "ck", stop), Sizes()
    run("argument", schedule, first)
    resumed, _ = run("argument", schedule, second, ckpt_path=tmp_path / "ck")
    assert first.sizes + second.sizes == expected
    assert are_equal(weights(whole), weights(resumed))


def test_one_schedule_alone_says_how_large_windows_are() -> None:
    """One of the two would be ignored."""
    scheduler = GradientAccumulationScheduler({0: 2})
    for options, code in (
        ({"callbacks": [scheduler], "accumulate_grad_batches": 2}, "window-size"),
        ({"callbacks": [scheduler], "accumulate_grad_batches": {0: 2}}, "window-size"),
        ({"callbacks": [scheduler, GradientAccumulationScheduler({0: 4})]}, "window-size"),
        ({"callbacks": [scheduler], "global_batch_size": 8}, "batch-split"),
    ):
        with pytest.raises(ConfigError, match="Both") as caught:
            Trainer(**{**QUIET, **options})
        assert caught.value.code == code


def test_a_callback_may_set_the_size() -> None:
    """A callback of the familiar protocol would set an attribute that nothing reads."""

    class Doubles(Callback):
        def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
            trainer.accumulate_grad_batches = 2**trainer.current_epoch

    sizes = Sizes()
    fit(max_epochs=3, callbacks=[Doubles(), sizes])
    assert sizes.sizes == [1] * 6 + [2] * 3 + [4, 2]


def test_a_function_that_gives_no_size_ends_the_run() -> None:
    """It would stand still in empty windows."""
    with pytest.raises(ConfigError, match="gave 0 after 2 steps"):
        fit(accumulate_grad_batches=lambda step: 0 if step == 2 else 1)
