"""Small runs of a Trainer on one CPU rank, and what is noted of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from drivetrain import Logger, Module, Trainer
from drivetrain.testing.fixtures import make_dataset, make_mlp

QUIET: dict[str, Any] = {
    "accelerator": "cpu", "logger": False, "enable_checkpointing": False, "enable_progress_bar": False,
    "enable_model_summary": False,
}  # fmt: skip


class Classifier(Module):
    """A float64 network with all steps."""

    def __init__(self, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.net = make_mlp(dropout=dropout)
        self.seen: list[tuple[str, int, int]] = []  # stage, batch index, loader

    def loss_of(self, batch: Any) -> Tensor:
        return functional.cross_entropy(self.net(batch[0]), batch[1])

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.seen.append(("train", batch_idx, 0))
        return self.loss_of(batch)

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.seen.append(("validate", batch_idx, dataloader_idx))
        self.log("val_loss", self.loss_of(batch))

    def test_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.seen.append(("test", batch_idx, dataloader_idx))
        self.log("test_loss", self.loss_of(batch))

    def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
        self.seen.append(("predict", batch_idx, dataloader_idx))
        return self.net(batch[0])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def count(self, stage: str) -> int:
        return sum(one[0] == stage for one in self.seen)


class Given(Module):
    """Its loss is what the data say, so that every reported value is known."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = batch[0].mean() + 0.0 * self.weight
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class ListLogger(Logger):
    """Keeps its rows."""

    def __init__(self) -> None:
        self.rows: list[tuple[int | None, dict[str, Any]]] = []
        self.hparams: list[dict[str, Any]] = []
        self.statuses: list[str] = []

    @property
    def name(self) -> str:
        return "list"

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        if self.is_writing:
            self.rows.append((step, dict(metrics)))

    def log_hyperparams(self, params: Any) -> None:
        self.hparams.append(dict(params))

    def finalize(self, status: str) -> None:
        self.statuses.append(status)

    def of(self, name: str) -> list[tuple[int | None, float]]:
        """Step and value of each row that has a name."""
        return [(step, row[name]) for step, row in self.rows if name in row]


def loader(length: int = 24, *, batch_size: int = 4, **options: Any) -> DataLoader[Any]:
    return DataLoader(make_dataset(length), batch_size=batch_size, **options)


def numbers(*values: float, batch_size: int = 1) -> DataLoader[Any]:
    """Batches of the given values."""
    return DataLoader(TensorDataset(torch.tensor(values, dtype=torch.float64)), batch_size=batch_size)


def fit(module: Module | None = None, data: Any = None, val_data: Any = None, **options: Any) -> tuple[Any, Trainer]:
    """Train; the module and its trainer."""
    module = module if module is not None else Classifier()
    trainer = Trainer(**{**QUIET, "max_epochs": 1, **options})
    trainer.fit(module, data if data is not None else loader(), val_data)
    return module, trainer


def weights(module: Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def are_equal(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(value, right[name]) for name, value in left.items())
