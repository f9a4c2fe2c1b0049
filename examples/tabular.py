"""Regression on a table: how far diabetes goes within a year, from ten columns of 442 patients.

The columns are brought to one scale by the statistics of the training rows, which stand in the module: a checkpoint
predicts from the table as it is. The learning rate falls where validation does not get better, and then training ends.
"""

# run: --epochs 6 --devices 1

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from sklearn.datasets import load_diabetes
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import drivetrain as dt


class Progression(dt.Module):
    """A small network between two scales: that of the columns, and that of the target."""

    def __init__(self, num_columns: int = 10, hidden: int = 32, learning_rate: float = 3e-3) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.learning_rate = learning_rate
        for name, size in (("columns", num_columns), ("target", 1)):
            self.register_buffer(f"{name}_mean", torch.zeros(size))
            self.register_buffer(f"{name}_std", torch.ones(size))
        self.net = nn.Sequential(nn.Linear(num_columns, hidden), nn.ReLU(), nn.Dropout(0.2), nn.Linear(hidden, 1))

    def standardize(self, columns: Tensor, target: Tensor) -> None:
        """Take mean and deviation of training rows, once, before training."""
        for name, values in (("columns", columns), ("target", target)):
            getattr(self, f"{name}_mean").copy_(values.mean(dim=0))
            getattr(self, f"{name}_std").copy_(values.std(dim=0))

    def forward(self, columns: Tensor) -> Tensor:
        scores = self.net((columns - self.columns_mean) / self.columns_std)
        return scores * self.target_std + self.target_mean

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        columns, target = batch
        loss = F.mse_loss(self(columns), target) / self.target_std.square().squeeze()
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        columns, target = batch
        self.log("val_square", F.mse_loss(self(columns), target), prog_bar=True)

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        columns, target = batch
        self.log("test_square", F.mse_loss(self(columns), target))

    def configure_optimizers(self) -> dict:
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.learning_rate, weight_decay=0.01)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.3, patience=4)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "val_square"}}


def read_rows() -> list[TensorDataset]:
    """242 patients to train on, 100 to validate, 100 to test."""
    columns, target = load_diabetes(return_X_y=True, scaled=False)
    order = torch.randperm(len(target), generator=torch.Generator().manual_seed(0))
    rows = torch.tensor(columns, dtype=torch.float32)[order], torch.tensor(target, dtype=torch.float32)[order, None]
    return [
        TensorDataset(*(column[part] for column in rows)) for part in (slice(200, None), slice(100), slice(100, 200))
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=1, help="ranks on this machine")
    parser.add_argument("--epochs", type=int, default=200, help="at most")
    parser.add_argument("--out", type=Path, default=Path("runs/tabular"))
    options = parser.parse_args()

    dt.seed_everything(1, verbose=False)
    train, val, test = read_rows()
    model = Progression()
    model.standardize(*train.tensors)
    stopping = dt.EarlyStopping(monitor="val_square", patience=12)
    trainer = dt.Trainer(
        accelerator="cpu",
        devices=options.devices,
        max_epochs=options.epochs,
        global_batch_size=16,
        micro_batch_size=16 // options.devices,
        default_root_dir=options.out,
        logger=False,
        callbacks=[stopping, dt.ModelCheckpoint(options.out, monitor="val_square")],
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, DataLoader(train, batch_size=16, shuffle=True), DataLoader(val, batch_size=100))
    trainer.print(f"epochs      {trainer.current_epoch}; {stopping.stopping_reason or 'not stopped early'}")
    (result,) = trainer.test(model, DataLoader(test, batch_size=100), ckpt_path="best", verbose=False)

    of_mean = (test.tensors[1] - model.target_mean).square().mean().sqrt().item()
    trainer.print(f"test error  {result['test_square'] ** 0.5:.1f} (has to be below {of_mean:.1f}: always the mean)")


if __name__ == "__main__":
    main()
