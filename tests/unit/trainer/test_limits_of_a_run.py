"""When a run ends, how much of its data it uses, and when it validates."""

from __future__ import annotations

import math
from typing import Any

import pytest

from drivetrain import Callback, Module, Trainer
from tests.unit.trainer.runs import QUIET, Classifier, fit, loader


@pytest.mark.parametrize(
    ("options", "steps", "batches", "epochs"),
    [
        ({"max_epochs": 2}, 12, 12, 2),
        ({"max_epochs": 2, "accumulate_grad_batches": 4}, 4, 12, 2),
        ({"max_epochs": -1, "max_steps": 8}, 8, 8, 1),
        ({"max_epochs": None, "max_steps": 3}, 3, 3, 0),
        ({"max_epochs": 1, "max_steps": 100}, 6, 6, 1),
        ({"max_epochs": -1, "max_steps": 6}, 6, 6, 1),
        ({"max_epochs": 0}, 0, 0, 0),
        ({"max_steps": 0}, 0, 0, 0),
        ({"max_epochs": 2, "limit_train_batches": 2}, 4, 4, 2),
        ({"max_epochs": 2, "limit_train_batches": 0.5}, 6, 6, 2),
        ({"max_epochs": 1, "limit_train_batches": 1.0}, 6, 6, 1),
        ({"max_epochs": 1, "limit_train_batches": 100}, 6, 6, 1),
        ({"max_epochs": 1, "limit_train_batches": 5, "accumulate_grad_batches": 2}, 3, 5, 1),
        ({"max_epochs": 1, "global_batch_size": 12}, 2, 6, 1),
    ],
)
def test_a_run_makes_the_steps_that_were_asked_for(
    options: dict[str, Any], steps: int, batches: int, epochs: int
) -> None:
    """One step too many or too few, or a counter that does not fit."""
    module, trainer = fit(data=loader(24), **options)
    assert (trainer.global_step, module.count("train"), trainer.current_epoch) == (steps, batches, epochs)
    assert trainer.micro_step == batches and trainer.progress.samples == 4 * batches


def test_a_second_fit_goes_on_where_the_first_ended() -> None:
    """Counters are monotone: a finished trainer has nothing left to do."""
    module, trainer = fit()
    trainer.fit(module, loader())
    assert trainer.global_step == 6


class StopAt(Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, trainer: Any, pl_module: Any) -> None:
        if trainer.global_step >= self.step:
            trainer.should_stop = True


@pytest.mark.parametrize(
    ("options", "steps"),
    [({}, 2), ({"min_epochs": 1}, 6), ({"min_epochs": 2}, 12), ({"min_steps": 4}, 4), ({"min_steps": 8}, 8)],
)
def test_a_stop_comes_at_once_or_when_the_minimum_is_reached(options: dict[str, int], steps: int) -> None:
    """An epoch of days would be finished first; or a minimum be ignored."""
    _, trainer = fit(max_epochs=3, callbacks=[StopAt(2)], **options)
    assert trainer.global_step == steps


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [6, 12]),
        ({"check_val_every_n_epoch": 2}, [12]),
        ({"val_check_interval": 0.5}, [3, 6, 9, 12]),
        ({"val_check_interval": 4}, [4, 10]),
        ({"val_check_interval": 5, "check_val_every_n_epoch": None}, [5, 10]),
        ({"limit_val_batches": 0}, []),
        ({"max_steps": 8}, [6, 8]),
    ],
)
def test_validation_runs_when_it_was_asked_for(options: dict[str, Any], expected: list[int]) -> None:
    """It would be counted in other units, or be left out at the end."""
    found = []

    class Watch(Callback):
        def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
            found.append(trainer.global_step)

    fit(
        data=loader(24), val_data=loader(8), max_epochs=options.pop("max_epochs", 2), callbacks=[Watch()],
        num_sanity_val_steps=0, **options,
    )  # fmt: skip
    assert found == expected


def test_validation_without_a_step_or_a_loader_is_left_out() -> None:
    """A module that only trains would fail where a loader is passed along."""

    class OnlyTrains(Classifier):
        validation_step = Module.validation_step

    for module, data in ((OnlyTrains(), loader()), (Classifier(), None)):
        fit(module, val_data=data)
        assert module.count("validate") == 0


@pytest.mark.parametrize(
    ("steps", "expected"),
    [(0, 0), (1, 2), (2, 4), (-1, 12), (100, 12)],
)
def test_the_sanity_check_takes_so_many_batches_of_each_loader(steps: int, expected: int) -> None:
    """An error in validation would show after the first epoch."""
    counts = []

    class Watch(Callback):
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            counts.append(pl_module.count("validate"))

    fit(val_data=[loader(), loader()], num_sanity_val_steps=steps, callbacks=[Watch()], limit_train_batches=1)
    assert counts == [expected]


@pytest.mark.parametrize(("fast", "batches"), [(True, 1), (3, 3)])
def test_a_fast_run_takes_a_few_batches_of_everything_and_writes_nothing(
    fast: Any, batches: int, tmp_path: Any
) -> None:
    """A trial run would write logs and checkpoints, or run for hours."""
    module = Classifier()
    trainer = Trainer(
        accelerator="cpu", fast_dev_run=fast, default_root_dir=tmp_path, enable_progress_bar=False,
        enable_model_summary=False, max_epochs=50,
    )  # fmt: skip
    trainer.fit(module, loader(), loader())
    trainer.test(module, loader(), verbose=False)
    trainer.predict(module, loader())
    assert [module.count(stage) for stage in ("train", "validate", "test", "predict")] == [batches] * 4
    assert trainer.loggers == [] and trainer.checkpoint_callback is None and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("limit", "batches"), [(2, 2), (0.5, 3), (1.0, 6), (0, 0), (None, 6), (100, 6)])
def test_each_evaluation_has_a_limit_of_its_own(limit: Any, batches: int) -> None:
    """A limit of one stage would cut another."""
    module = Classifier()
    trainer = Trainer(**QUIET, limit_val_batches=limit, limit_test_batches=limit, limit_predict_batches=limit)
    trainer.validate(module, loader(), verbose=False)
    trainer.test(module, loader(), verbose=False)
    trainer.predict(module, loader())
    assert [module.count(stage) for stage in ("validate", "test", "predict")] == [batches] * 3


def test_callbacks_can_read_how_much_there_is_to_do() -> None:
    """A schedule with a warm-up, or a bar, would not know its length."""
    found: list[Any] = []

    class Watch(Callback):
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            found.append((trainer.num_training_batches, trainer.num_val_batches, trainer.estimated_stepping_batches))

    for options in (
        {}, {"limit_train_batches": 0.5, "limit_val_batches": 1}, {"accumulate_grad_batches": 4}, {"max_steps": 2},
    ):  # fmt: skip
        fit(val_data=[loader(8), loader(12)], callbacks=[Watch()], **options)
    assert found == [(6, [2, 3], 6), (3, [1, 1], 3), (6, [2, 3], 2), (6, [2, 3], 2)]

    class Stream:
        def __iter__(self) -> Any:
            return iter(loader(8))

    fit(data=Stream(), callbacks=[Watch()])
    assert found[-1] == (math.inf, [], math.inf)


def test_a_stream_without_a_length_is_an_epoch() -> None:
    """An iterable without `len` could not be trained on."""

    class Stream:
        def __iter__(self) -> Any:
            return iter(loader(22))

    module, trainer = fit(data=Stream(), max_epochs=2, accumulate_grad_batches=4)
    assert (trainer.global_step, module.count("train"), trainer.current_epoch) == (4, 12, 2)
    assert trainer.progress.samples == 44
    module, trainer = fit(data=Stream(), limit_train_batches=3)
    assert (trainer.global_step, trainer.current_epoch) == (3, 1)
