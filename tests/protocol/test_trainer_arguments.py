"""Arguments of a trainer that scripts use seldom, and what is not there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from drivetrain import ConfigError, DataModule, Fabric, Precision, Trainer
from drivetrain.precision.precision import make_precision
from drivetrain.trainer.absent_members import ABSENT_MEMBERS
from tests.unit.trainer.runs import QUIET, Classifier, Given, ListLogger, are_equal, fit, loader, numbers, weights


class Seen(Given):
    """Notes the data of each stage."""

    def __init__(self) -> None:
        super().__init__()
        self.trained: list[list[float]] = []
        self.validated: list[list[float]] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.trained.append(batch[0].tolist())
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.validated.append(batch[0].tolist())


@pytest.mark.parametrize(("given", "size"), [(2, 2), (0.25, 3)])
def test_a_few_batches_are_the_same_ones_in_each_epoch(given: Any, size: int) -> None:
    """A module that cannot learn two batches by heart could not be told from one that saw others each time."""
    data = DataLoader(TensorDataset(torch.arange(12, dtype=torch.float64)), shuffle=True)
    module, trainer = fit(Seen(), data, data, overfit_batches=given, max_epochs=3, num_sanity_val_steps=0)
    assert trainer.global_step == 3 * size and len(module.validated) == 3 * size
    assert module.trained[:size] == module.trained[size : 2 * size] == module.trained[2 * size :]
    assert module.trained[:size] != [[float(number)] for number in range(size)]
    assert module.validated[:size] == module.validated[2 * size :]


class Made(DataModule):
    """Its loaders depend on the epoch."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []

    def train_dataloader(self) -> Any:
        epoch = self.trainer.current_epoch
        self.asked.append(("train", epoch))
        return numbers(*range(10 * epoch, 10 * epoch + epoch + 1))

    def val_dataloader(self) -> Any:
        self.asked.append(("val", self.trainer.current_epoch))
        return numbers(-self.trainer.current_epoch)


def test_loaders_are_made_anew_every_n_epochs() -> None:
    """Data that become harder with the epochs would stay as they were."""
    module, data = Seen(), Made()
    trainer = Trainer(**QUIET, max_epochs=4, reload_dataloaders_every_n_epochs=2, num_sanity_val_steps=0)
    trainer.fit(module, datamodule=data)
    assert data.asked == [("train", 0), ("val", 0), ("train", 2), ("val", 2)]
    assert module.trained == [[0.0], [0.0], *[[20.0], [21.0], [22.0]] * 2]
    assert module.validated == [[0.0], [0.0], [-2.0], [-2.0]]
    with pytest.raises(ConfigError, match="reload_dataloaders_every_n_epochs=-1") as caught:
        Trainer(reload_dataloaders_every_n_epochs=-1)
    assert caught.value.code == "limits"


def test_a_run_that_goes_on_has_the_loaders_of_its_epoch(tmp_path: Any) -> None:
    """It would read those of the first epoch."""

    def trainer(**options: Any) -> Trainer:
        return Trainer(**QUIET, max_epochs=3, reload_dataloaders_every_n_epochs=1, num_sanity_val_steps=0, **options)

    first = trainer(max_steps=4)
    first.fit(Seen(), datamodule=Made())
    first.save_checkpoint(tmp_path / "ck")
    module = Seen()
    trainer().fit(module, datamodule=Made(), ckpt_path=tmp_path / "ck")
    assert module.trained == [[21.0], [22.0]]


def test_loaders_that_were_given_cannot_be_made_anew() -> None:
    """The argument would be taken, and change nothing."""
    with pytest.warns(UserWarning, match="reload_dataloaders_every_n_epochs changes nothing"):
        fit(Seen(), numbers(1), reload_dataloaders_every_n_epochs=1)


def test_a_bare_run_trains_and_does_nothing_else(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A measurement would measure logs and bars."""
    monkeypatch.chdir(tmp_path)
    trainer = Trainer(accelerator="cpu", devices=1, max_epochs=1, barebones=True)
    module = Classifier()
    trainer.fit(module, loader(), loader(4))
    assert trainer.callbacks == [] and trainer.logger is None and list(tmp_path.iterdir()) == []
    assert module.count("validate") == 1 and are_equal(weights(module), weights(fit(Classifier())[0]))
    for name in ("logger", "enable_progress_bar", "num_sanity_val_steps", "profiler"):
        with pytest.raises(ConfigError, match=f"barebones=True leaves out what {name}") as caught:
            Trainer(barebones=True, **{name: "simple" if name == "profiler" else 1})
        assert caught.value.code == "barebones"


@pytest.mark.parametrize("name", sorted(ABSENT_MEMBERS))
def test_a_member_that_is_not_there_says_what_to_read(name: str) -> None:
    """An AttributeError that says nothing."""
    trainer = Trainer(**QUIET)
    assert not hasattr(trainer, name)
    with pytest.raises(AttributeError) as caught:
        getattr(trainer, name)
    assert ABSENT_MEMBERS[name] in str(caught.value)
    with pytest.raises(AttributeError, match="'Trainer' has no attribute 'no_such'$"):
        trainer.no_such  # noqa: B018


@pytest.mark.parametrize("kind", [Trainer, Fabric])
def test_number_formats_may_be_among_the_plugins(kind: Any) -> None:
    """A script that gives them there would train in float32."""
    options = {"accelerator": "cpu", "devices": 1}
    own = Precision("mine", compute_dtype=torch.bfloat16)
    for given in (own, [own]):
        made = kind(**options, plugins=given)
        assert (made.plan if kind is Fabric else made._fabric.plan).precision is own
    kind(**options, plugins=[], precision="bf16-mixed")
    for arguments in ({"plugins": ["SLURMEnvironment"]}, {"plugins": object()}):
        with pytest.raises(ConfigError, match="which is no Precision") as caught:
            kind(**options, **arguments)
        assert caught.value.code == "plugins" and "a Strategy of your own" in str(caught.value)
    for arguments in ({"plugins": [own], "precision": "16-mixed"}, {"plugins": [own, make_precision("bf16-true")]}):
        with pytest.raises(ConfigError, match="given 2 times") as caught:
            kind(**options, **arguments)
        assert caught.value.code == "plugins"


@pytest.mark.parametrize("is_logged", [True, False])
def test_hyperparameters_are_given_to_loggers_unless_that_is_off(is_logged: bool) -> None:
    """Those of a secret data set would be in every log."""

    class Tuned(Classifier):
        def __init__(self, width: int = 3) -> None:
            super().__init__()
            self.save_hyperparameters()

    logger = ListLogger()
    fit(Tuned(), logger=logger, enable_autolog_hparams=is_logged)
    assert logger.hparams == ([{"width": 3}] if is_logged else [])
