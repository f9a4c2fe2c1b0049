"""A learning rate is looked for before the training, on a copy: the training begins as if nothing had happened.

# run: --steps 40 --accelerator cpu --devices 1
# run: --steps 40 --accelerator cpu --devices 1 --out found

    python examples/lr_find.py
    python examples/lr_find.py --devices 2          # all ranks find the same rate
    python examples/lr_find.py --out found          # found.png: loss over learning rate; needs the extra plots
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from drivetrain import Module, Trainer, Tuner, seed_everything


class Spirals(Module):
    """Two spirals, told apart by a small network."""

    def __init__(self, learning_rate: float = 1e-3) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.net = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        points, side = batch
        loss = nn.functional.binary_cross_entropy_with_logits(self.net(points), side)
        self.log("loss", loss, on_epoch=True)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=self.learning_rate)


def make_loader() -> DataLoader[Any]:
    turns = torch.linspace(0.2, 1.5, 256).repeat(2).unsqueeze(1)
    side = torch.arange(2.0).repeat_interleave(256).unsqueeze(1)
    angle = 2 * torch.pi * turns + torch.pi * side
    points = turns * torch.cat([angle.cos(), angle.sin()], dim=1)
    return DataLoader(TensorDataset(points, side), batch_size=32, shuffle=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100, help="of the search")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--accelerator", default="auto")
    parser.add_argument("--out", help="of the picture, without .png")
    options = parser.parse_args()
    seed_everything(1)
    model, loader = Spirals(), make_loader()
    trainer = Trainer(
        accelerator=options.accelerator, devices=options.devices, max_epochs=options.epochs, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    found = Tuner(trainer).lr_find(model, loader, min_lr=1e-5, num_training=options.steps)
    suggestion = found.suggestion() if found is not None else None
    if found is not None and options.out and trainer.is_global_zero:
        found.save_plot(f"{options.out}.png")
    if suggestion is not None:
        model.learning_rate = suggestion  # to use what was found is one line
    trainer.print(f"learning rate {model.learning_rate:.3g}")
    trainer.fit(model, loader)
    trainer.print(f"loss {float(trainer.callback_metrics['loss_epoch']):.3f}")


if __name__ == "__main__":
    main()
