"""A network that has learned to tell 0 to 4 is taught 5 to 9 with few images: the new head first, then all of it.

`BackboneFinetuning` freezes the backbone before the optimizer is made, and gives it to the optimizer later, at a
learning rate of its own, on any number of ranks. The figure to beat is what the head alone has come to.
"""

# run: --epochs 8 --unfreeze-at 4

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import drivetrain as dt


class FiveDigits(dt.Module):
    """A backbone that may be had from elsewhere, and a head for five classes."""

    def __init__(self, backbone: nn.Module, width: int, learning_rate: float = 3e-3) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.backbone, self.head = backbone, nn.Linear(width, 5)
        self.accuracies: list[float] = []

    def forward(self, pixels: Tensor) -> Tensor:
        return self.head(self.backbone(pixels))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        pixels, digits = batch
        loss = F.cross_entropy(self(pixels), digits)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        pixels, digits = batch
        self.log("accuracy", (self(pixels).argmax(dim=1) == digits).double().mean())

    def on_validation_end(self) -> None:
        self.accuracies.append(float(self.trainer.callback_metrics["accuracy"]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW((one for one in self.parameters() if one.requires_grad), lr=self.learning_rate)


def make_backbone(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, width), nn.BatchNorm1d(width), nn.ReLU()
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=1, help="ranks on this machine")
    parser.add_argument("--epochs", type=int, default=20, help="of each of the two trainings")
    parser.add_argument("--unfreeze-at", type=int, default=10, help="first epoch that trains the backbone as well")
    parser.add_argument("--out", type=Path, default=Path("runs/fine-tuning"))
    options = parser.parse_args()

    dt.seed_everything(1, verbose=False)
    digits = load_digits()
    order = torch.randperm(len(digits.data), generator=torch.Generator().manual_seed(0))
    pixels = (torch.tensor(digits.data, dtype=torch.float32) / 16)[order]
    labels = torch.tensor(digits.target)[order]
    old, new = (TensorDataset(pixels[part], labels[part] % 5) for part in (labels < 5, labels >= 5))
    few, unseen = (TensorDataset(*(one[part] for one in new.tensors)) for part in (slice(100), slice(100, None)))

    def fit(model: FiveDigits, data: TensorDataset, callbacks: list[dt.Callback]) -> None:
        trainer = dt.Trainer(
            accelerator="cpu", devices=options.devices, max_epochs=options.epochs, callbacks=callbacks, logger=False,
            num_sanity_val_steps=0, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        train_loader = DataLoader(data, batch_size=20 // options.devices, shuffle=True, drop_last=True)
        trainer.fit(model, train_loader, DataLoader(unseen, batch_size=200))

    width = 32
    pretrained = FiveDigits(make_backbone(width), width)
    fit(pretrained, old, [])
    model = FiveDigits(pretrained.backbone, width)
    finetuning = dt.BackboneFinetuning(
        options.unfreeze_at, lambda_func=lambda epoch: 1.5, backbone_initial_ratio_lr=0.3, train_bn=False
    )
    fit(model, few, [finetuning])

    of_head = model.accuracies[options.unfreeze_at - 1]
    for epoch, accuracy in enumerate(model.accuracies):
        model.print(f"epoch {epoch:2}  {'head' if epoch < options.unfreeze_at else 'all '}  accuracy {accuracy:.4f}")
    model.print(
        f"accuracy on unseen 5 to 9  {model.accuracies[-1]:.4f} (has to be above {of_head:.4f}: the head alone)"
    )


if __name__ == "__main__":
    main()
