"""Train a small byte-level GPT on text that ships inside Python itself.

The text is the help of `pydoc_data.topics` and sources of the standard library. The run ends with the loss on text that
it has not seen, beside that of a bigram model counted on the same training text, and with a sample.
"""

# run: --steps 20 --out text-run

from __future__ import annotations

import argparse
import csv
import math
import sysconfig
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

import drivetrain as dt

MODULES = ("argparse", "ast", "asyncio/base_events", "dataclasses", "datetime", "decimal", "doctest", "typing")


def read_text() -> Tensor:
    """All bytes, as numbers: `(length,) uint8`."""
    from pydoc_data.topics import topics

    parts = [topics[name] for name in sorted(topics)]
    library = Path(sysconfig.get_paths()["stdlib"])
    parts += [(library / f"{name}.py").read_text() for name in MODULES if (library / f"{name}.py").exists()]
    return torch.frombuffer(bytearray("\n".join(parts).encode()), dtype=torch.uint8)


class Pieces(Dataset):
    """Pieces of `length + 1` bytes, `stride` apart: each byte but the first is to be predicted."""

    def __init__(self, text: Tensor, length: int, stride: int) -> None:
        self.text, self.length, self.stride = text, length, stride

    def __len__(self) -> int:
        return (len(self.text) - self.length - 1) // self.stride + 1

    def __getitem__(self, index: int) -> Tensor:
        start = index * self.stride
        return self.text[start : start + self.length + 1].long()


class Block(nn.Module):
    """Attention and a feed-forward layer, each with a norm before and a residual around."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norm_1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.feed(self.norm_2(x))


class ByteGPT(dt.Module):
    """Predicts the next byte."""

    def __init__(self, context: int = 64, width: int = 64, heads: int = 4, depth: int = 2) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.context = context
        self.bytes = nn.Embedding(256, width)
        self.places = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 256, bias=False)
        nn.init.normal_(self.bytes.weight, std=0.02)
        nn.init.normal_(self.places.weight, std=0.02)
        self.head.weight = self.bytes.weight

    def forward(self, numbers: Tensor) -> Tensor:
        places = torch.arange(numbers.shape[1], device=numbers.device)
        return self.head(self.norm(self.blocks(self.bytes(numbers) + self.places(places))))

    def loss_of(self, batch: Tensor) -> Tensor:
        scores = self(batch[:, :-1])
        return F.cross_entropy(scores.flatten(0, 1), batch[:, 1:].flatten())

    def training_step(self, batch: Tensor, batch_idx: int) -> dict[str, Any]:
        loss = self.loss_of(batch)
        self.log("train_loss", loss, prog_bar=True)
        return {"loss": loss, "weight": batch[:, 1:].numel()}

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        self.log("val_loss", self.loss_of(batch), prog_bar=True, batch_size=batch[:, 1:].numel())

    def configure_optimizers(self) -> dict[str, Any]:
        optimizer = torch.optim.AdamW(self.parameters(), lr=6e-3, betas=(0.9, 0.98), weight_decay=0.01)
        steps = int(self.trainer.estimated_stepping_batches)

        def factor(step: int) -> float:
            warm_up = min(1.0, (step + 1) / 50)
            return warm_up * (0.05 + 0.475 * (1 + math.cos(math.pi * min(step / steps, 1.0))))

        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    @torch.no_grad()
    def sample(self, start: bytes, length: int, temperature: float = 0.7, seed: int = 0) -> str:
        generator = torch.Generator().manual_seed(seed)
        numbers = torch.tensor([list(start)])
        for _ in range(length):
            scores = self(numbers[:, -self.context :])[0, -1] / temperature
            following = torch.multinomial(scores.softmax(0), 1, generator=generator)
            numbers = torch.cat([numbers, following[None]], dim=1)
        return bytes(numbers[0].tolist()).decode(errors="replace")


def bigram_loss(train: Tensor, val: Tensor) -> float:
    """Nats per byte of a model that only knows which byte follows which, with one added to each count."""
    counts = torch.ones(256, 256, dtype=torch.float64)
    pairs = train[:-1].long() * 256 + train[1:].long()
    counts += torch.bincount(pairs, minlength=256 * 256).view(256, 256)
    chances = counts / counts.sum(1, keepdim=True)
    return -chances[val[:-1].long(), val[1:].long()].log().mean().item()


def read_curve(metrics: Path, name: str) -> dict[int, float]:
    """Values of one column of the CSV log, by optimizer step."""
    with open(metrics, newline="") as file:
        return {int(row["step"]): float(row[name]) for row in csv.DictReader(file) if row.get(name)}


def plot_losses(metrics: Path, bigram: float, picture: Path) -> None:
    """The losses by optimizer step, and the bigram model's as a line."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    train, val = read_curve(metrics, "train_loss"), read_curve(metrics, "val_loss")
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    axes.plot(list(train), list(train.values()), linewidth=1, alpha=0.6, label="training, one step")
    axes.plot(list(val), list(val.values()), marker="o", label="validation")
    axes.axhline(bigram, color="black", linestyle="--", label=f"bigram model: {bigram:.2f}")
    axes.set(title="A small GPT on the text of Python's own library", xlabel="optimizer step", ylabel="nats per byte")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(picture, dpi=120)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=1, help="ranks on this machine")
    parser.add_argument("--accumulate", type=int, default=1, help="micro-batches of one optimizer step, on each rank")
    parser.add_argument("--batch", type=int, default=16, help="pieces of text in a micro-batch, on each rank")
    parser.add_argument("--steps", type=int, default=2500, help="optimizer steps")
    parser.add_argument("--out", type=Path, default=Path("runs/text"))
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    dt.seed_everything(options.seed, verbose=False)
    text = read_text()
    model = ByteGPT()
    num_val = 800 * model.context + 1
    train_text, val_text = text[:-num_val], text[-num_val:]
    train = DataLoader(Pieces(train_text, model.context, 32), batch_size=options.batch, shuffle=True)
    val = DataLoader(Pieces(val_text, model.context, model.context), batch_size=100)
    logger = dt.CSVLogger(options.out, name=None)
    trainer = dt.Trainer(
        accelerator="cpu",
        devices=options.devices,
        max_steps=options.steps,
        accumulate_grad_batches=options.accumulate,
        gradient_clip_val=1.0,
        check_val_every_n_epoch=None,
        val_check_interval=max(1, options.steps // 10) * options.accumulate,  # micro-batches
        log_every_n_steps=10,
        logger=logger,
        callbacks=[dt.ModelCheckpoint(every_n_train_steps=max(1, options.steps // 3))],
    )
    trainer.fit(model, train, val)
    (result,) = trainer.validate(model, val, verbose=False)

    if trainer.is_global_zero:
        folder = Path(logger.log_dir)
        bigram = bigram_loss(train_text, val_text)
        plot_losses(folder / "metrics.csv", bigram, folder / "losses.png")
        for step, loss in read_curve(folder / "metrics.csv", "val_loss").items():
            print(f"step {step:5}  validation loss {loss:.3f}, bigram model {bigram:.3f}")
        print(f"loss on unseen text  {result['val_loss']:.3f} nats per byte")
        print(f"bigram model         {bigram:.3f} nats per byte")
        print(f"checkpoints          {folder / 'checkpoints'}")
        print(f"losses               {folder / 'losses.png'}")
        print("sample:")
        print(model.sample(b"The ", 300))


if __name__ == "__main__":
    main()
