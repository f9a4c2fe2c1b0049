"""Learning rates move with optimizer steps or epochs, never with micro-batches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau

from drivetrain import Callback, OptimizerError
from tests.unit.trainer.runs import Classifier, fit, loader


class Scheduled(Classifier):
    """The rate is the number of times that the scheduler was advanced."""

    def __init__(self, **config: Any) -> None:
        super().__init__()
        self.config = config
        self.rates: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.rates.append(self.optimizers().param_groups[0]["lr"])
        return super().training_step(batch, batch_idx)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
        scheduler = LambdaLR(optimizer, lambda number: float(number))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, **self.config}}


@pytest.mark.parametrize(
    ("config", "size", "rates"),
    [
        ({"interval": "step"}, 1, [0, 1, 2, 3, 4, 5, 6, 7]),
        ({"interval": "step"}, 2, [0, 0, 1, 1, 2, 2, 3, 3]),
        ({"interval": "step", "frequency": 2}, 1, [0, 0, 1, 1, 2, 2, 3, 3]),
        ({"interval": "step", "frequency": 3}, 1, [0, 0, 0, 1, 1, 1, 2, 2]),
        ({"interval": "step"}, 3, [0, 0, 0, 1, 2, 2, 2, 3]),
        ({"interval": "epoch"}, 1, [0, 0, 0, 0, 1, 1, 1, 1]),
        ({}, 4, [0, 0, 0, 0, 1, 1, 1, 1]),
        ({"frequency": 2}, 1, [0, 0, 0, 0, 0, 0, 0, 0]),
    ],
)
def test_a_scheduler_advances_once_for_each_step_or_epoch(config: dict[str, Any], size: int, rates: list[int]) -> None:
    """A warm-up would be over too early when gradients are accumulated."""
    module, _ = fit(Scheduled(**config), loader(16), max_epochs=2, accumulate_grad_batches=size)
    assert module.rates == rates


def test_an_epochs_schedule_advances_once_when_it_is_validated_often() -> None:
    """Each validation would count as an epoch."""
    module, _ = fit(Scheduled(), loader(16), loader(4), max_epochs=2, val_check_interval=1)
    assert module.rates == [0.0] * 4 + [1.0] * 4


def test_a_skipped_step_does_not_move_the_schedule() -> None:
    """The rate would fall while nothing is learnt."""

    class Silent(Scheduled):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = super().training_step(batch, batch_idx)
            return None if batch_idx == 1 else loss

    with pytest.warns(UserWarning, match="no weight"):
        module, _ = fit(Silent(interval="step"), loader(16))
    assert module.rates == [0.0, 1.0, 1.0, 2.0]


def test_a_plateau_schedule_sees_the_validation_of_its_epoch() -> None:
    """It would react one epoch late."""

    class Plateau(Classifier):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("val_loss", float(self.current_epoch))

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
            scheduler = ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
            return {"optimizer": optimizer, "lr_scheduler": scheduler, "monitor": "val_loss"}

    rates = []

    class Watch(Callback):
        def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
            rates.append(trainer.optimizers[0].param_groups[0]["lr"])

    fit(Plateau(), loader(8), loader(4), max_epochs=4, callbacks=[Watch()])
    assert rates == [1.0, 1.0, 0.5, 0.25]


def test_a_plateau_schedule_without_its_value_says_what_there_is() -> None:
    """It would never lower the rate."""

    class Plateau(Classifier):
        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
            return {"optimizer": optimizer, "lr_scheduler": ReduceLROnPlateau(optimizer), "monitor": "val_los"}

    with pytest.raises(OptimizerError, match=r"monitors 'val_los', which was not logged; logged are \['val_loss'\]"):
        fit(Plateau(), loader(8), loader(4))


def test_the_module_finds_its_optimizers_and_schedulers() -> None:
    """A step could not look at its learning rate."""
    found: list[Any] = []

    class Own(Scheduled):
        def on_train_start(self) -> None:
            found.extend([self.optimizers(), self.lr_schedulers()])

    _, trainer = fit(Own())
    assert found == [trainer.optimizers[0], trainer.lr_scheduler_configs[0].scheduler]
