"""How batches come to the device is a script's to say."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from drivetrain import ConfigError, DataModule, Trainer
from tests.unit.trainer.runs import QUIET, Classifier, are_equal, fit, loader, weights


class Notes:
    """Hooks that note what they were given, and do the usual."""

    heard: list[Any]

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        self.heard.append(("before", dataloader_idx))
        return super().on_before_batch_transfer(batch, dataloader_idx)

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        self.heard.append(("move", device.type, dataloader_idx))
        return super().transfer_batch_to_device(batch, device, dataloader_idx)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        self.heard.append(("after", dataloader_idx))
        return super().on_after_batch_transfer(batch, dataloader_idx)


class Noting(Notes, Classifier):
    def __init__(self) -> None:
        super().__init__()
        self.heard: list[Any] = []


def test_each_batch_of_each_loader_goes_through_the_modules_hooks() -> None:
    """A script that augments on the device would train on what the loader gave."""
    module, trainer = fit(Noting(), loader(8), [loader(4), loader(4)], num_sanity_val_steps=0)
    assert are_equal(weights(module), weights(fit(Classifier(), loader(8))[0]))
    batch = [("before", 0), ("move", "cpu", 0), ("after", 0)]
    second = [("before", 1), ("move", "cpu", 1), ("after", 1)]
    assert module.heard == batch * 2 + batch + second
    module.heard.clear()
    trainer.predict(module, loader(4))
    trainer.test(module, loader(4), verbose=False)
    assert module.heard == batch * 2


def test_what_the_hooks_return_is_what_steps_and_hooks_get() -> None:
    """They would be called for nothing."""

    class Doubles(Classifier):
        def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
            return [batch[0] + 1.0, batch[1]]

        def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
            assert dataloader_idx == 0 and device == self.device
            return tuple(part.to(device) for part in batch)

        def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
            return (batch[0] * (2.0 if self.trainer.training else 0.0), batch[1])

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            seen.append(batch)
            return super().training_step(batch, batch_idx)

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("sum", batch[0].sum())

    seen: list[Any] = []
    _, trainer = fit(Doubles(), loader(8), loader(8))
    plain = next(iter(loader(8)))[0]
    assert isinstance(seen[0], tuple) and torch.equal(seen[0][0], (plain + 1.0) * 2.0)
    assert float(trainer.callback_metrics["sum"]) == 0.0


def test_a_data_modules_hooks_come_before_the_modules() -> None:
    """A batch would be augmented twice, or by the wrong one."""

    class Data(Notes, DataModule):
        def __init__(self) -> None:
            self.heard = []

        def train_dataloader(self) -> Any:
            return loader(4)

    class Before(DataModule):
        def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
            seen.append("data")
            return batch

        def train_dataloader(self) -> Any:
            return loader(4)

    seen: list[str] = []
    data, module = Data(), Noting()
    Trainer(**QUIET, max_epochs=1).fit(module, datamodule=data)
    assert module.heard == [] and len(data.heard) == 3
    Trainer(**QUIET, max_epochs=1).fit(module, datamodule=Before())
    assert seen == ["data"] and module.heard == [("move", "cpu", 0), ("after", 0)]


def test_batches_come_in_the_parameters_dtype_whoever_moves_them() -> None:
    """With `precision="64-true"` a layer would refuse what a script has moved itself."""

    class Moves(Classifier):
        def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
            return [part.to(device) for part in batch]

    features, targets = loader(8).dataset.tensors
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(features.float(), targets), batch_size=4)
    assert are_equal(*(weights(fit(kind(), data, precision="64-true")[0]) for kind in (Moves, Classifier)))


def test_the_arguments_of_versions_long_gone_are_refused() -> None:
    """The first batch would end with a TypeError that names our code."""

    class Old(Classifier):
        def transfer_batch_to_device(self, batch: Any, device: Any) -> Any:  # type: ignore[override]
            return batch

    with pytest.raises(ConfigError, match="Old.transfer_batch_to_device.*dataloader_idx") as caught:
        fit(Old())
    assert caught.value.code == "step-signature"
