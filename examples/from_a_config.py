"""A script with a command line: the class of the module, its arguments and the trainer's come from files and options.

# run: fit --trainer.max_epochs 2 --trainer.accelerator cpu --trainer.devices 1 --optimizer AdamW --optimizer.lr 0.01
# run: fit --data.num_features 5 --print_config

Every stage has the options of the trainer, the module and the data:

    python examples/from_a_config.py fit --trainer.max_epochs 5 --model.num_hidden 32
    python examples/from_a_config.py validate --config drivetrain_logs/version_0/config.yaml --ckpt_path ...
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from drivetrain import CLI, DataModule, Module


class Regression(Module):
    """A network with one hidden layer.

    Args:
        num_features: Of a sample; linked to the data.
        num_hidden: Width of the hidden layer.
    """

    def __init__(self, num_features: int, num_hidden: int = 16) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(num_features, num_hidden), nn.Tanh(), nn.Linear(num_hidden, 1))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        features, targets = batch
        loss = nn.functional.mse_loss(self.net(features), targets)
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        features, targets = batch
        self.log("val_loss", nn.functional.mse_loss(self.net(features), targets))


class Waves(DataModule):
    """Points on a wave.

    Args:
        num_features: Of a sample.
        num_samples: In an epoch.
        batch_size: Samples of a micro-batch.
    """

    def __init__(self, num_features: int = 3, num_samples: int = 256, batch_size: int = 16) -> None:
        self.num_features, self.num_samples, self.batch_size = num_features, num_samples, batch_size

    def setup(self, stage: str) -> None:
        features = torch.randn(self.num_samples, self.num_features, generator=torch.Generator().manual_seed(0))
        self.data = TensorDataset(features, features.sin().sum(dim=1, keepdim=True))

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.data, batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.data, batch_size=self.batch_size)


class WavesCLI(CLI):
    """The width of a sample is said once."""

    def add_arguments_to_parser(self, parser: Any) -> None:
        parser.link_arguments("data.num_features", "model.num_features")
        parser.add_optimizer_args()
        parser.set_defaults({"optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1}}})


if __name__ == "__main__":
    WavesCLI(Regression, Waves, seed_everything_default=1)
