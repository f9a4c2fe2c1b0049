"""Two networks against each other: a maker draws digits, a judge tells them from real ones.

Each has an optimizer, a loss and a window of its own: the judge steps at every batch, the maker at every `--pace`th,
on the mean over the batches between. Neither loss touches the other's gradients, on any number of ranks.
"""

# run: --epochs 4

from __future__ import annotations

import argparse

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import drivetrain as dt


class Gan(dt.Module):
    """A maker from noise to pixels, and a judge from pixels to a score."""

    automatic_optimization = False

    def __init__(self, noise: int = 16, hidden: int = 128, pace: int = 1) -> None:
        super().__init__()
        self.noise, self.pace = noise, pace
        self.maker = nn.Sequential(
            nn.Linear(noise, hidden), nn.BatchNorm1d(hidden), nn.ReLU(),
            nn.Linear(hidden, hidden), nn.BatchNorm1d(hidden), nn.ReLU(),
            nn.Linear(hidden, 64), nn.Sigmoid(),
        )  # fmt: skip
        self.judge = nn.Sequential(
            nn.Linear(64, hidden), nn.LeakyReLU(0.2), nn.Linear(hidden, hidden), nn.LeakyReLU(0.2), nn.Linear(hidden, 1)
        )

    def make(self, count: int) -> Tensor:
        return self.maker(torch.randn(count, self.noise, device=self.device))

    def verdict(self, pixels: Tensor) -> Tensor:
        """Some noise keeps the judge from learning the real images by heart."""
        return self.judge(pixels + 0.2 * torch.randn_like(pixels))

    def training_step(self, batch: tuple[Tensor], batch_idx: int) -> None:
        (real,) = batch
        judge, maker = self.optimizers()
        made = self.make(len(real))
        with self.window(judge) as window:
            loss = F.softplus(-self.verdict(real)).mean() + F.softplus(self.verdict(made.detach())).mean()
            window.backward(loss)
        with self.window(maker, size=self.pace) as window:
            fooled = F.softplus(-self.verdict(made)).mean()
            window.backward(fooled)
        self.log_dict({"judge": loss, "maker": fooled}, on_step=False, on_epoch=True)

    def configure_optimizers(self) -> list:
        return [torch.optim.Adam(part.parameters(), lr=1e-3, betas=(0.5, 0.99)) for part in (self.judge, self.maker)]


def distance(made: Tensor, real: Tensor) -> float:
    """To the nearest real image from each made one, and the other way round: what is never made counts as well."""
    pairs = torch.cdist(made, real)
    return (pairs.min(dim=0).values.mean() + pairs.min(dim=1).values.mean()).item() / 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=1, help="ranks on this machine")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--pace", type=int, default=1, help="batches for each step of the maker")
    options = parser.parse_args()

    dt.seed_everything(1, verbose=False)
    pixels = torch.tensor(load_digits().data, dtype=torch.float32) / 16
    order = torch.randperm(len(pixels), generator=torch.Generator().manual_seed(0))
    train, unseen = pixels[order[:-500]], pixels[order[-500:]]
    model = Gan(pace=options.pace)
    trainer = dt.Trainer(
        accelerator="cpu", devices=options.devices, max_epochs=options.epochs, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(model, DataLoader(TensorDataset(train), batch_size=32 // options.devices, shuffle=True))

    with torch.no_grad():
        made = model.make(500)
    each_by_itself = torch.stack([column[torch.randperm(len(train))[:500]] for column in train.T], dim=1)
    trainer.print("\n".join("".join(" .:*#"[int(4.99 * value)] * 2 for value in row) for row in made[0].view(8, 8)))
    trainer.print(
        f"distance to unseen digits {distance(made, unseen):.3f} "
        f"(has to be below {distance(each_by_itself, unseen):.3f}: each pixel drawn by itself)"
    )


if __name__ == "__main__":
    main()
