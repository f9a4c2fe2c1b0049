"""A training loop of one's own on handwritten digits, on any number of ranks.

The loop is plain PyTorch: `fabric` starts the ranks, wraps the model and shards the loaders, and a window is one
optimizer step over some micro-batches on each rank. `--devices 2 --accumulate 2` makes the same steps as the defaults.
"""

# run: --epochs 2
# run: --epochs 1 --devices 2 --accumulate 2
# run: --epochs 1 --devices 2 --accumulate 2 --strategy fsdp

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset, random_split

import drivetrain as dt


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=1, help="ranks on this machine")
    parser.add_argument("--accumulate", type=int, default=4, help="micro-batches of one optimizer step, on each rank")
    parser.add_argument("--strategy", default="auto", help="auto, ddp or fsdp")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("runs/fabric"))
    options = parser.parse_args()

    fabric = dt.Fabric(accelerator="cpu", devices=options.devices, strategy=options.strategy)
    fabric.launch()  # with several ranks the program runs again from its first line in each of them, and goes on here
    fabric.seed_everything(1, verbose=False)

    digits = load_digits()
    data = TensorDataset(torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target))
    train_data, val_data = random_split(data, [1500, 297], generator=torch.Generator().manual_seed(0))
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    model, optimizer = fabric.setup(model, optimizer)
    train_loader = fabric.setup_dataloaders(DataLoader(train_data, batch_size=8, shuffle=True))
    val_loader = fabric.setup_dataloaders(DataLoader(val_data, batch_size=100), training=False)

    num_steps = 0
    for epoch in range(options.epochs):
        train_loader.set_epoch(epoch)
        for window in fabric.windows(train_loader, model, optimizer, size=options.accumulate, max_norm=1.0):
            for pixels, labels in window:
                window.backward(F.cross_entropy(model(pixels), labels))
            num_steps += 1

        num_right = torch.tensor(0)
        with torch.no_grad():
            for pixels, labels in fabric.evaluation_batches(val_loader, model):
                num_right += (model(pixels).argmax(dim=1) == labels).sum()
        accuracy = int(fabric.all_reduce(num_right, "sum")) / len(val_data)
        fabric.print(f"epoch {epoch}: {num_steps} steps, validation accuracy {accuracy:.4f}")

    fabric.save(options.out / "last.ckpt", {"model": model, "optimizer": optimizer, "step": num_steps})
    fabric.print(f"checkpoint {options.out / 'last.ckpt'}")
    fabric.close()


if __name__ == "__main__":
    main()
