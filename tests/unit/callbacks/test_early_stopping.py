from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from drivetrain.base.errors import ConfigError
from drivetrain.callbacks.early_stopping import EarlyStopping
from tests.unit.callbacks.fake_trainer import FakeTrainer


def num_checks(stopper: EarlyStopping, values: list[float]) -> int:
    """After how many values it stops; 0 if it goes on."""
    for number, value in enumerate(values, 1):
        if stopper.judge(value):
            return number
    return 0


@pytest.mark.parametrize(
    ("options", "values", "stops_at"),
    [
        ({"patience": 2}, [1.0, 0.9, 0.95, 0.95], 4),
        ({"patience": 2}, [1.0, 1.1, 0.9, 1.0, 0.8], 0),
        ({"patience": 1}, [1.0, 1.0], 2),
        ({"patience": 0}, [1.0, 0.9, 0.8], 0),
        ({"patience": 0}, [1.0, 1.1], 2),
        ({"patience": 2, "mode": "max"}, [0.1, 0.2, 0.2, 0.1], 4),
        ({"patience": 1, "min_delta": 0.1}, [1.0, 0.95], 2),
        ({"patience": 1, "min_delta": 0.1}, [1.0, 0.85, 0.7], 0),
        ({"patience": 1, "min_delta": 0.1, "mode": "max"}, [1.0, 1.05], 2),
        ({"patience": 1, "min_delta": -0.1, "mode": "max"}, [1.0, 1.05], 2),
        ({"patience": 9}, [1.0, math.nan], 2),
        ({"patience": 9}, [1.0, math.inf], 2),
        ({"patience": 2, "check_finite": False}, [1.0, math.nan, math.nan], 3),
        ({"patience": 9, "stopping_threshold": 0.5}, [1.0, 0.6, 0.4], 3),
        ({"patience": 9, "stopping_threshold": 0.5}, [1.0, 0.5], 0),
        ({"patience": 9, "stopping_threshold": 0.5, "mode": "max"}, [0.4, 0.6], 2),
        ({"patience": 9, "divergence_threshold": 5.0}, [1.0, 5.0, 5.1], 3),
        ({"patience": 9, "divergence_threshold": 0.5, "mode": "max"}, [1.0, 0.4], 2),
    ],
)
def test_it_stops_at_the_right_check(options: dict[str, Any], values: list[float], stops_at: int) -> None:
    """A run that stops too early, too late, or never."""
    assert num_checks(EarlyStopping("val", **options), values) == stops_at


def test_it_counts_and_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run that ended, and nobody knows why or where."""
    trainer = FakeTrainer(tmp_path, num_val_batches=[1])
    stopper = EarlyStopping("val", patience=2, verbose=True)
    trainer.start(stopper)
    waits = []
    for value in (1.0, 0.5, 0.6, 0.7):
        trainer.step()
        trainer.validate(val=value)
        trainer.end_epoch()
        waits.append(stopper.wait_count)
    assert waits == [0, 0, 1, 2]
    assert trainer.should_stop and stopper.stopped_epoch == 3 and float(stopper.best_score) == 0.5
    assert "was not better than 0.5 in 2 checks" in stopper.stopping_reason
    assert "Epoch 3: Stopped: val was not better" in capsys.readouterr().out


def test_each_value_is_checked_once(tmp_path: Path) -> None:
    """Patience that is used up twice as fast, after validation and at the end of the epoch."""
    for options, sizes in (({}, [1]), ({"check_on_train_epoch_end": True}, [1]), ({}, [])):
        trainer = FakeTrainer(tmp_path, num_val_batches=sizes)
        stopper = EarlyStopping("val", patience=9, **options)  # type: ignore[arg-type]
        trainer.start(stopper)
        for _ in range(4):
            trainer.step()
            if sizes:
                trainer.validate(val=1.0)
            trainer.end_epoch(val=1.0)
        assert stopper.wait_count == 3


def test_a_value_of_training_is_checked_at_the_end_of_the_epoch(tmp_path: Path) -> None:
    """A check after validation that sees the loss of the epoch before, or an error for a name that comes later."""
    trainer = FakeTrainer(tmp_path, num_val_batches=[1])
    stopper = EarlyStopping("train", patience=2)
    trainer.start(stopper)
    bests = []
    for value in (3.0, 2.0, 1.0):
        trainer.step()
        trainer.validate(val=0.0)
        trainer.end_epoch(train=value)
        bests.append(float(stopper.best_score))
    assert bests == [3.0, 2.0, 1.0]


def test_the_sanity_check_does_not_count(tmp_path: Path) -> None:
    """An untrained model that is never beaten."""
    trainer, stopper = FakeTrainer(tmp_path, num_val_batches=[1]), EarlyStopping("val")
    trainer.callbacks = [stopper]
    trainer.sanity_checking = True
    trainer.validate(val=0.0)
    assert stopper.best_score == math.inf


def test_a_resumed_run_stops_where_it_would_have_stopped(tmp_path: Path) -> None:
    """Patience that begins anew with each resume, or counts the last value twice."""
    first = EarlyStopping("val", patience=3)
    trainer = FakeTrainer(tmp_path, num_val_batches=[1])
    trainer.start(first)
    for value in (1.0, 2.0):
        trainer.step()
        trainer.validate(val=value)
        trainer.end_epoch()
    second = EarlyStopping("val", patience=3)
    again = FakeTrainer(tmp_path, num_val_batches=[1])
    again.callbacks = [second]
    second.load_state_dict(first.state_dict())
    again.progress.step = trainer.global_step
    again.fire("on_train_start")
    again.validate(val=2.0)  # a run that goes on from the end of an epoch validates again
    assert second.wait_count == 1
    for stops in (False, True):
        again.step()
        again.validate(val=2.0)
        assert again.should_stop is stops


def test_a_metric_that_nobody_logs_is_an_error_or_said_once(tmp_path: Path) -> None:
    """A typing error that shows as a run that never stops."""
    trainer = FakeTrainer(tmp_path)
    trainer.start(EarlyStopping("val_los"))
    trainer.step()
    with pytest.raises(ConfigError) as error:
        trainer.end_epoch(val_loss=1.0)
    assert error.value.code == "monitor-missing" and "val_loss" in str(error.value)
    trainer.start(EarlyStopping("val_los", strict=False))
    with pytest.warns(UserWarning, match="val_los") as said:
        trainer.end_epoch()
        trainer.end_epoch()
    assert len(said) == 1 and not trainer.should_stop


def test_arguments_that_mean_nothing_are_refused() -> None:
    """`mode="auto"` that is taken for one of the two."""
    for options, code in (({"mode": "auto"}, "monitor-mode"), ({"patience": -1}, "patience")):
        with pytest.raises(ConfigError) as error:
            EarlyStopping("val", **options)  # type: ignore[arg-type]
        assert error.value.code == code
