"""Train a classifier of handwritten digits on any number of ranks.

The data ships with scikit-learn. With two ranks, `--devices 2 --accumulate 4` makes the same steps as
`--devices 1 --accumulate 8`: the global batch is the same, and so are the final weights, up to rounding.
"""

# run: --epochs 2 --out digits-run

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import drivetrain as dt


class DigitClassifier(dt.Module):
    """Two hidden layers on 8 x 8 pixels."""

    def __init__(self, hidden: int = 256, learning_rate: float = 0.1) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 10)
        )
        self.learning_rate = learning_rate

    def forward(self, pixels: Tensor) -> Tensor:
        return self.net(pixels)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        pixels, digits = batch
        scores = self(pixels)
        loss = F.cross_entropy(scores, digits)
        self.log("train_loss", loss, prog_bar=True, on_step=True, on_epoch=True)
        self.log("train_accuracy", accuracy(scores, digits), on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.evaluate(batch, "val")

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.evaluate(batch, "test")

    def evaluate(self, batch: tuple[Tensor, Tensor], stage: str) -> None:
        pixels, digits = batch
        scores = self(pixels)
        self.log(f"{stage}_loss", F.cross_entropy(scores, digits), prog_bar=True)
        self.log(f"{stage}_accuracy", accuracy(scores, digits), prog_bar=True)

    def configure_optimizers(self) -> dict:
        optimizer = torch.optim.SGD(self.parameters(), lr=self.learning_rate, momentum=0.9, weight_decay=1e-4)
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Digits(dt.DataModule):
    """1,797 images: 1,297 to train on, 200 to validate, 300 to test."""

    def __init__(self, batch_size: int) -> None:
        self.batch_size = batch_size

    def setup(self, stage: str) -> None:
        digits = load_digits()
        pixels = torch.tensor(digits.data, dtype=torch.float32) / 16.0
        order = torch.randperm(len(pixels), generator=torch.Generator().manual_seed(0))
        data = TensorDataset(pixels[order], torch.tensor(digits.target)[order])
        self.train, self.val, self.test = (torch.utils.data.Subset(data, part) for part in split(len(data)))

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.train, batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(self.val, batch_size=100)

    def test_dataloader(self) -> DataLoader:
        return DataLoader(self.test, batch_size=100)


def accuracy(scores: Tensor, digits: Tensor) -> Tensor:
    return (scores.argmax(dim=1) == digits).double().mean()


def split(length: int) -> tuple[range, range, range]:
    return range(length - 500), range(length - 500, length - 300), range(length - 300, length)


def plot_curves(metrics: Path, picture: Path) -> None:
    """Loss and accuracy by optimizer step, from the CSV log."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    with open(metrics, newline="") as file:
        rows = list(csv.DictReader(file))

    def curve(name: str) -> tuple[list[int], list[float]]:
        points = [(int(row["step"]), float(row[name])) for row in rows if row.get(name)]
        return [step for step, _ in points], [value for _, value in points]

    figure, (losses, accuracies) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    losses.plot(*curve("train_loss_epoch"), marker="o", label="training")
    losses.plot(*curve("val_loss"), marker="o", label="validation")
    losses.set(title="Loss", xlabel="optimizer step", ylabel="cross-entropy", yscale="log")
    accuracies.plot(*curve("train_accuracy"), marker="o", label="training")
    accuracies.plot(*curve("val_accuracy"), marker="o", label="validation")
    accuracies.set(title="Accuracy", xlabel="optimizer step", ylabel="fraction right", ylim=(None, 1.01))
    for axes in (losses, accuracies):
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(picture, dpi=120)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=1, help="ranks on this machine")
    parser.add_argument("--accumulate", type=int, default=4, help="micro-batches of one optimizer step, on each rank")
    parser.add_argument("--batch", type=int, default=8, help="samples of a micro-batch, on each rank")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--float64", action="store_true", help="compute in double precision")
    parser.add_argument("--strategy", default="auto")
    parser.add_argument("--out", type=Path, default=Path("runs/digits"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--save-weights", type=Path, help="write the final weights to this file")
    options = parser.parse_args()

    dt.seed_everything(options.seed, verbose=False)
    model, data = DigitClassifier(), Digits(options.batch)
    best = dt.ModelCheckpoint(monitor="val_loss", filename="{epoch}-{val_loss:.3f}")
    logger = dt.CSVLogger(options.out, name=None)
    trainer = dt.Trainer(
        accelerator="cpu",
        devices=options.devices,
        strategy=options.strategy,
        precision="64-true" if options.float64 else "32-true",
        max_epochs=options.epochs,
        accumulate_grad_batches=options.accumulate,
        gradient_clip_val=1.0,
        log_every_n_steps=10,
        logger=logger,
        callbacks=[best],
    )
    trainer.fit(model, datamodule=data)
    if options.save_weights and trainer.is_global_zero:
        torch.save(model.state_dict(), options.save_weights)
    (result,) = trainer.test(model, datamodule=data, ckpt_path="best", verbose=False)

    if trainer.is_global_zero:
        folder = Path(logger.log_dir)
        plot_curves(folder / "metrics.csv", folder / "curves.png")
        print(f"test accuracy    {result['test_accuracy']:.4f}")
        print(f"best checkpoint  {best.best_model_path}")
        print(f"metrics          {folder / 'metrics.csv'}")
        print(f"curves           {folder / 'curves.png'}")


if __name__ == "__main__":
    main()
