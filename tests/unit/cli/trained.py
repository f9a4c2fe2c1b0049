"""What the tests of command lines name by its path."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader

from drivetrain import Callback, DataModule, Module
from drivetrain.testing.fixtures import make_dataset, make_mlp


class Net(Module):
    """A float64 network."""

    def __init__(self, num_hidden: int = 4, learning_rate: float = 0.1) -> None:
        super().__init__()
        self.net = make_mlp(num_hidden=num_hidden)
        self.num_hidden, self.learning_rate = num_hidden, learning_rate
        self.drawn = torch.rand(1).item()

    def loss_of(self, batch: Any) -> Tensor:
        return functional.cross_entropy(self.net(batch[0]), batch[1])

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss_of(batch)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.loss_of(batch))

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.log("test_loss", self.loss_of(batch))

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.net(batch[0])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.learning_rate)


class Data(DataModule):
    """Sixteen samples for every stage."""

    def __init__(self, batch_size: int = 4, num_samples: int = 16) -> None:
        self.batch_size, self.num_samples = batch_size, num_samples

    def train_dataloader(self) -> Any:
        return DataLoader(make_dataset(self.num_samples), batch_size=self.batch_size)

    val_dataloader = test_dataloader = predict_dataloader = train_dataloader


class Counter(Callback):
    """Counts steps."""

    def __init__(self, start: int = 0) -> None:
        self.count = start

    def on_step_end(self, trainer: Any, pl_module: Any) -> None:
        self.count += 1
