"""`Tuner.lr_find`."""

from __future__ import annotations

import copy
import math
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from drivetrain import ConfigError, MissingExtraError, ModelCheckpoint, Trainer, Tuner
from drivetrain.base.rng import capture_rng
from drivetrain.tuner import LRFindResult
from tests.unit.trainer.runs import QUIET, Classifier, ListLogger, are_equal, fit, loader, weights


class Rated(Classifier):
    """Has a learning rate to set."""

    def __init__(self, *, dropout: float = 0.0) -> None:
        super().__init__(dropout=dropout)
        self.learning_rate = 0.1

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.learning_rate)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)}


def quiet(**options: Any) -> Trainer:
    return Trainer(**{**QUIET, "max_epochs": 2, **options})


def find(module: Any = None, data: Any = None, trainer: Trainer | None = None, **options: Any) -> LRFindResult:
    found = Tuner(trainer or quiet()).lr_find(module or Rated(), data or loader(), **options)
    assert found is not None
    return found


def by_hand(num_steps: int, *, size: int = 4) -> tuple[list[float], list[float]]:
    """A hand-written sweep over the same data."""
    module = Classifier()
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1)
    features, targets = loader().dataset.tensors  # type: ignore[attr-defined]
    rates, losses = [], []
    for step in range(num_steps):
        rates.append(1e-6 * (10.0 / 1e-6) ** (step / (num_steps - 1)))
        optimizer.param_groups[0]["lr"] = rates[-1]
        begin = step * size % len(features)
        loss = functional.cross_entropy(module.net(features[begin : begin + size]), targets[begin : begin + size])
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return rates, losses


@pytest.mark.parametrize(("accumulate", "size"), [(1, 4), (3, 12)])
def test_it_is_the_sweep_that_one_would_write(accumulate: int, size: int) -> None:
    """The curve would be of other steps than those that are trained later; windows would give a point for each part."""
    trainer = quiet(accumulate_grad_batches=accumulate)
    found = find(trainer=trainer, min_lr=1e-6, max_lr=10.0, num_training=20, early_stop_threshold=None)
    rates, losses = by_hand(20, size=size)
    assert found.learning_rates == pytest.approx(rates, rel=1e-12)
    assert found.losses == pytest.approx(losses, rel=1e-9)


def test_nothing_is_changed_by_a_search(tmp_path: Path) -> None:
    """A diverged model, moved counters or another random state would be what training begins with."""
    logger, keeper = ListLogger(), ModelCheckpoint(dirpath=str(tmp_path))
    module, trainer = fit(Rated(dropout=0.5), logger=logger, callbacks=[keeper], enable_checkpointing=True)
    trainer.limits = Trainer(**{**QUIET, "max_epochs": 2}).limits
    before = (weights(module), copy.deepcopy(trainer.optimizers[0].state_dict()), trainer.progress.state_dict())
    files = sorted(tmp_path.rglob("*"))
    rows, rng, run, modules = list(logger.rows), capture_rng(), trainer.run, list(trainer._fabric._modules)
    find(module, trainer=trainer, num_training=15)
    assert are_equal(weights(module), before[0])
    after = trainer.optimizers[0].state_dict()
    assert after["param_groups"] == before[1]["param_groups"]
    for name, state in before[1]["state"].items():
        assert are_equal(after["state"][name], state)
    assert (trainer.progress.state_dict(), trainer.run, trainer._fabric._modules) == (before[2], run, modules)
    assert (logger.rows, sorted(tmp_path.rglob("*"))) == (rows, files)
    for name, state in rng.items():
        assert all(torch.equal(*pair) if isinstance(pair[0], torch.Tensor) else pair[0] == pair[1]
                   for pair in zip(as_list(state), as_list(capture_rng()[name]), strict=True))  # fmt: skip
    assert module._trainer is None


def as_list(state: Any) -> list[Any]:
    return list(state) if isinstance(state, list) else [state]


def test_a_training_after_a_search_is_the_one_without_it() -> None:
    """The seed of the data order, or dropout, would depend on whether a rate was looked for."""

    def train(searches: bool) -> dict[str, Any]:
        module, trainer = Rated(dropout=0.5), quiet()
        torch.manual_seed(3)
        data = loader(shuffle=True)
        if searches:
            torch.manual_seed(9)  # a seed that is set after the search counts for the training
            find(module, data, trainer, num_training=7)
            torch.manual_seed(3)
        trainer.fit(module, data)
        return weights(module)

    assert are_equal(train(False), train(True))


def test_a_search_keeps_the_random_state() -> None:
    """A training that goes on would draw other numbers than without the search."""
    module, trainer, data = Rated(dropout=0.5), quiet(), loader(shuffle=True)
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    find(module, data, trainer, num_training=7)
    assert torch.equal(torch.rand(3), expected)


def test_a_schedule_that_waits_for_a_metric_rests() -> None:
    """The search would end where the first epoch does: validation does not run in it."""

    class Plateau(Rated):
        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
            return {"optimizer": optimizer, "lr_scheduler": schedule, "monitor": "val_loss"}

    assert len(find(Plateau(), num_training=15).losses) == 15


def test_the_search_ends_where_the_loss_diverges() -> None:
    """Steps with nothing to see would cost as much as the others."""
    found = find(min_lr=1e-2, max_lr=1e6, num_training=60, early_stop_threshold=4.0)
    assert 2 < len(found.losses) < 60
    assert found.smoothed[-1] > 4 * min(found.smoothed) and all(map(math.isfinite, found.losses))


def curve(losses: list[float]) -> LRFindResult:
    return LRFindResult([10 ** (-6 + at / 10) for at in range(len(losses))], losses)


def test_the_suggestion_is_where_the_loss_falls_fastest() -> None:
    """The rate would be one at which little is learnt, or the model diverges."""
    losses = [2.0] * 20 + [2.0 - 0.1 * at for at in range(10)] + [1.1 + 0.3 * at for at in range(10)]
    found = curve(losses)
    suggestion = found.suggestion()
    assert suggestion is not None and found.learning_rates[20] < suggestion <= found.learning_rates[30]
    assert found.results["loss"] == found.smoothed and found.results["lr"] == found.learning_rates


@pytest.mark.parametrize("losses", [[1.0 + at for at in range(30)], [1.0] * 5, []])
def test_without_a_fall_there_is_no_suggestion(losses: list[float]) -> None:
    """A rate would be suggested of which nothing speaks."""
    with pytest.warns(UserWarning, match="No learning rate is suggested"):
        assert curve(losses).suggestion() is None


def test_the_suggestion_is_set_where_that_was_asked_for() -> None:
    """It would be set on the copy; or without being asked for."""
    module = Rated()
    trainer = quiet()
    found = find(module, trainer=trainer, min_lr=1e-4, num_training=40)
    assert module.learning_rate == 0.1
    again = find(module, trainer=trainer, min_lr=1e-4, num_training=40, update_attr=True)
    assert again.losses == found.losses and module.learning_rate == found.suggestion() != 0.1
    with pytest.raises(ConfigError, match="no attribute lr or learning_rate"):
        find(Classifier(), update_attr=True)


def test_the_curve_is_drawn(tmp_path: Path) -> None:
    """A figure without names of its axes, or with the suggestion somewhere else."""
    pytest.importorskip("matplotlib")
    found = curve([2.0] * 20 + [2.0 - 0.1 * at for at in range(10)])
    axes = found.plot(suggest=True).axes[0]
    assert (axes.get_xlabel(), axes.get_xscale(), axes.get_ylabel()) == ("learning rate", "log", "training loss")
    assert axes.lines[-1].get_xdata()[0] == found.suggestion()
    found.save_plot(tmp_path / "lr.png")
    assert (tmp_path / "lr.png").stat().st_size > 1000


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A traceback instead of the line that installs it."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match="drivetrain\\[plots\\]"):
        curve([1.0]).plot()


class Two(Rated):
    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(self.net[0].parameters(), lr=1.0), torch.optim.SGD(self.net[2].parameters(), lr=1.0)]


class Manual(Rated):
    automatic_optimization = False


@pytest.mark.parametrize(
    ("module", "options", "code"),
    [
        (Two, {}, "lr-find"),
        (Manual, {}, "manual-optimization"),
        (Rated, {"mode": "cubic"}, "lr-find"),
        (Rated, {"min_lr": 2.0}, "lr-find"),
        (Rated, {"method": "test"}, "tuner-method"),
    ],
)
def test_what_cannot_be_searched_is_refused(module: Any, options: Any, code: str) -> None:
    """A search that means nothing would give a number."""
    with pytest.raises(ConfigError) as refused:
        find(module(), **options)
    assert refused.value.code == code


def test_a_dry_run_searches_nothing() -> None:
    """`fast_dev_run` would take a hundred steps."""
    with pytest.warns(UserWarning, match="fast_dev_run"):
        assert Tuner(quiet(fast_dev_run=True)).lr_find(Rated(), loader()) is None


def test_a_search_says_nothing_beside_its_result(capsys: pytest.CaptureFixture[str]) -> None:
    """Bars and tables of a run that is nobody's."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        find(num_training=5, trainer=quiet(enable_progress_bar=True, enable_model_summary=True))
    printed = capsys.readouterr()
    assert printed.out == printed.err == ""
