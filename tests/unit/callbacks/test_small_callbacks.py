from __future__ import annotations

import io
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from torch import nn

from drivetrain.base.errors import ConfigError, HookError
from drivetrain.callbacks.lambda_callback import LambdaCallback
from drivetrain.callbacks.model_summary import ModelSummary, show_summary, summarize
from drivetrain.callbacks.timer import Timer
from tests.unit.callbacks.fake_trainer import FakeTrainer


def model() -> nn.Module:
    shared = nn.Linear(4, 4)
    net = nn.Sequential(nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4)), shared, shared)
    net[0][0].requires_grad_(False)  # type: ignore[index]
    return net


def test_a_summary_counts_each_parameter_once() -> None:
    """A shared layer that is counted as often as it is used."""
    summary = summarize(model(), max_depth=-1)
    assert (summary.num_parameters, summary.num_trainable) == (12 + 8 + 20, 8 + 20)
    assert summary.size_bytes == 4 * (12 + 8 + 20) + 4 * 8 + 8
    assert [(layer.name, layer.num_parameters) for layer in summary.layers] == [
        ("0", 20), ("0.0", 12), ("0.1", 8), ("1", 20),
    ]  # fmt: skip


def test_a_summary_goes_as_deep_as_asked() -> None:
    """Thousands of lines for a large model."""
    assert [layer.name for layer in summarize(model(), max_depth=1).layers] == ["0", "1"]
    assert summarize(model(), max_depth=0).layers == ()


def test_parameters_without_a_shape_are_said_and_not_counted() -> None:
    """A lazy layer on which the summary fails."""
    summary = summarize(nn.Sequential(nn.Linear(1, 1), nn.LazyLinear(3)))
    assert summary.num_parameters == 2 and summary.has_lazy
    file = io.StringIO()
    show_summary(summary, file=file)
    assert "not counted yet" in file.getvalue()


def test_the_table_is_printed_once_by_rank_zero(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As many tables as ranks, or a name in brackets that is taken for a colour."""
    trainer = FakeTrainer(tmp_path)
    trainer.module = nn.ModuleDict({"[red]": nn.Linear(1000, 1000)})  # type: ignore[assignment]
    trainer.start(ModelSummary())
    text = capsys.readouterr().err
    assert "[red]" in text and "1,001,000" in text and "4 MB" in text
    trainer.collectives.rank = 1
    trainer.start(ModelSummary())
    assert capsys.readouterr().err == ""


def test_functions_become_hooks(tmp_path: Path) -> None:
    """A hook that is never called."""
    seen: list[object] = []
    callback = LambdaCallback(on_train_start=lambda trainer, module: seen.append(module), setup=lambda *_: None)
    trainer = FakeTrainer(tmp_path)
    trainer.start(callback)
    assert seen == [trainer.module]


def test_a_function_for_no_hook_is_refused() -> None:
    """A typing error that shows as a function that never runs."""
    with pytest.raises(HookError) as error:
        LambdaCallback(on_train_begin=lambda *_: None)
    assert error.value.code == "unknown-hook"


def test_time_that_is_up_ends_the_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A job that is killed by its queue instead of ending in time."""
    now = [100.0]
    for interval in ("step", "epoch"):
        trainer, timer = FakeTrainer(tmp_path), Timer("00:00:01:00", interval, clock=lambda: now[0])
        trainer.start(timer)
        now[0] += 59
        trainer.step()
        trainer.end_epoch()
        assert not trainer.should_stop and timer.time_remaining() == 1.0
        now[0] += 1
        trainer.step()
        assert trainer.should_stop is (interval == "step")
        trainer.end_epoch()
        assert trainer.should_stop
        assert "the time is up after 0:01:00" in capsys.readouterr().out


def test_time_before_a_resume_counts(tmp_path: Path) -> None:
    """A limit that begins anew with each restart."""
    now = [0.0]
    first = Timer(timedelta(seconds=10), clock=lambda: now[0])
    trainer = FakeTrainer(tmp_path)
    trainer.start(first)
    now[0] = 7.0
    second = Timer({"seconds": 10}, clock=lambda: now[0])
    second.load_state_dict(first.state_dict())
    trainer.start(second)
    now[0] = 9.0
    trainer.finish()
    now[0] = 100.0
    assert second.time_elapsed() == 9.0 and second.time_elapsed("validate") == 0.0


def test_durations_that_cannot_be_understood_are_refused() -> None:
    """`"2h"` that is taken for no limit."""
    for duration in ("2h", {"fortnights": 1}):
        with pytest.raises(ConfigError) as error:
            Timer(duration)  # type: ignore[arg-type]
        assert error.value.code == "timer"
    with pytest.raises(ConfigError):
        Timer(interval="batch")


def test_states_are_plain(tmp_path: Path) -> None:
    """A checkpoint that cannot be loaded with weights_only=True."""
    trainer, timer = FakeTrainer(tmp_path), Timer()
    trainer.start(timer)
    torch.save(timer.state_dict(), tmp_path / "a.pt")
    assert torch.load(tmp_path / "a.pt", weights_only=True).keys() == {"train_s"}
