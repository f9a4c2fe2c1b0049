"""Learn what images are alike without labels, and see at the end what that is worth with very few of them.

Each image is changed at random into two views, in the data set, so that workers do it. An encoder learns to tell the
pairs (SimCLR: Chen et al. 2020, arXiv:2002.05709). What workers draw is a function of seed, epoch and position, so
that their number changes nothing. The loss compares the images of a micro-batch on one rank: cut otherwise, it differs.
"""

# run: --epochs 5 --workers 1

from __future__ import annotations

import argparse
import math

import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

import drivetrain as dt


class Views(Dataset):
    """Two views of each image: turned, moved, scaled, a little brighter or darker, and noisy."""

    def __init__(self, images: Tensor) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.view(self.images[index]), self.view(self.images[index])

    @staticmethod
    def view(image: Tensor) -> Tensor:
        turn, scale, right, down, light = torch.empty(5).uniform_(-1, 1).tolist()
        cos, sin = (f(turn * math.radians(20)) / (1 + 0.15 * scale) for f in (math.cos, math.sin))
        matrix = torch.tensor([[cos, -sin, right / 4], [sin, cos, down / 4]])
        grid = F.affine_grid(matrix[None], [1, 1, 8, 8], align_corners=False)
        moved = F.grid_sample(image.view(1, 1, 8, 8), grid, align_corners=False)
        return moved.flatten() * (1 + 0.3 * light) + 0.1 * torch.randn(64)


class Contrast(dt.Module):
    """An encoder, and a head in which pairs are told that is not used afterwards."""

    def __init__(self, hidden: int = 256, width: int = 64, temperature: float = 0.2) -> None:
        super().__init__()
        self.temperature = temperature
        self.encoder = nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.head = nn.Linear(hidden, width)

    def forward(self, images: Tensor) -> Tensor:
        return self.encoder(images)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        places = F.normalize(self.head(self(torch.cat(batch))), dim=1)
        likeness = (places @ places.T / self.temperature).fill_diagonal_(-torch.inf)
        partner = torch.arange(len(places), device=self.device).roll(len(batch[0]))
        loss = F.cross_entropy(likeness, partner)
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=2e-3)


def probe(features: Tensor, digits: Tensor, num_labels: int) -> float:
    """The accuracy on the last 500 of a linear model that is given few labels: the mean over ten sets of them."""
    scaled = ((features - features.mean(dim=0)) / (features.std(dim=0) + 1e-3)).numpy()
    scores = []
    for first in range(0, 10 * num_labels, num_labels):
        few = slice(first, first + num_labels)
        linear = LogisticRegression(max_iter=2000).fit(scaled[few], digits[few].numpy())
        scores.append(linear.score(scaled[-500:], digits[-500:].numpy()))
    return sum(scores) / len(scores)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=1, help="ranks on this machine")
    parser.add_argument("--workers", type=int, default=2, help="processes of each rank that make views")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--labels", type=int, default=30, help="of the linear model at the end")
    options = parser.parse_args()

    dt.seed_everything(1, verbose=False)
    digits = load_digits()
    order = torch.randperm(len(digits.data), generator=torch.Generator().manual_seed(0))
    images = (torch.tensor(digits.data, dtype=torch.float32) / 16)[order]
    labels = torch.tensor(digits.target)[order]
    model = Contrast()
    trainer = dt.Trainer(
        accelerator="cpu", devices=options.devices, max_epochs=options.epochs, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    loader = DataLoader(
        Views(images[:-500]), batch_size=128, shuffle=True, drop_last=True,
        num_workers=options.workers, persistent_workers=options.workers > 0,
    )  # fmt: skip
    trainer.fit(model, loader)

    with torch.no_grad():
        features = model(images)
    of_pixels, of_encoder = (probe(one, labels, options.labels) for one in (images, features))
    trainer.print(
        f"accuracy from {options.labels} labels  {of_encoder:.3f} (has to be above {of_pixels:.3f}: on pixels)"
    )


if __name__ == "__main__":
    main()
