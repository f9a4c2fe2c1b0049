"""The same training twice, plain and compiled: the weights are the same up to rounding, and so are their names.

What is compiled is an argument of the trainer; the module knows nothing of it. A window of several micro-batches, the
short last batch of an epoch and the validation are all compiled: `dynamic=True` makes one graph for all batch sizes.
The default backend, inductor, writes C++ for a CPU, and takes some seconds before the first step.

    python examples/compiled.py                       # inductor, if there is a C++ compiler; else aot_eager
    python examples/compiled.py --backend eager       # traced, but run as ever: equal bit for bit
    python examples/compiled.py --devices 2 --accumulate 1
"""

# run: --epochs 1 --backend aot_eager
# run: --epochs 1 --backend eager --accumulate 1

from __future__ import annotations

import argparse
import shutil
import time
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import drivetrain as dt


class Mixer(nn.Module):
    """Mixes the 8 rows of an image, then each row by itself, with a residual around both."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.rows, self.columns = nn.Linear(8, 8), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.rows(self.norm(x).transpose(1, 2)).transpose(1, 2)
        return x + self.columns(F.gelu(x))


class Digits(dt.Module):
    """Tells handwritten digits apart."""

    def __init__(self, width: int = 32, depth: int = 2) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(8, width), *(Mixer(width) for _ in range(depth)), nn.Flatten(), nn.Linear(8 * width, 10)
        )
        self.step_times: list[float] = []

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        images, digits = batch
        return F.cross_entropy(self.net(images), digits)

    def on_before_zero_grad(self, optimizer: Any) -> None:
        self.step_times.append(time.perf_counter())

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        images, digits = batch
        self.log("accuracy", (self.net(images).argmax(dim=1) == digits).double().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.02, momentum=0.9)


def make_loaders(batch_size: int) -> tuple[DataLoader[Any], DataLoader[Any]]:
    """1,497 images to train on, which no batch size here divides, and 300 others."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32) / 16.0
    data = TensorDataset(images, torch.tensor(digits.target))
    train, val = torch.utils.data.random_split(data, [1497, 300], torch.Generator().manual_seed(0))
    return DataLoader(train, batch_size=batch_size, shuffle=True), DataLoader(val, batch_size=100)


def train(options: argparse.Namespace, compile: Any) -> tuple[Digits, dt.Trainer]:
    """One training from the same weights, with or without `torch.compile`."""
    dt.seed_everything(options.seed, verbose=False)
    module = Digits()
    trainer = dt.Trainer(
        accelerator=options.accelerator, devices=options.devices, accumulate_grad_batches=options.accumulate,
        max_epochs=options.epochs, compile=compile, gradient_clip_val=1.0, num_sanity_val_steps=0, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    module.step_times.append(time.perf_counter())
    trainer.fit(module, *make_loaders(options.batch))
    return module, trainer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--backend", default="inductor" if shutil.which("c++") else "aot_eager", help="of torch.compile"
    )
    parser.add_argument("--devices", type=int, default=1, help="ranks on this machine")
    parser.add_argument("--accelerator", default="cpu")
    parser.add_argument("--accumulate", type=int, default=2, help="micro-batches of one optimizer step, on each rank")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    plain, _ = train(options, compile=None)
    compiled, trainer = train(options, compile={"backend": options.backend, "dynamic": True})
    difference = max(
        float((plain.state_dict()[name] - value).abs().max()) for name, value in compiled.state_dict().items()
    )
    for name, module in (("plain", plain), ("compiled", compiled)):
        times = [end - start for start, end in zip(module.step_times, module.step_times[1:], strict=False)]
        if len(times) > 1 and trainer.is_global_zero:
            rest = sorted(times[1:])[len(times[1:]) // 2]
            print(f"{name:9} first step after {times[0]:.2f} s, the others in {1000 * rest:.2f} ms")
    trainer.print(f"accuracy on unseen images {float(trainer.callback_metrics['accuracy']):.3f}")
    trainer.print(f"greatest difference of a weight {difference:.7f} (has to be below 0.001: rounding)")


if __name__ == "__main__":
    main()
