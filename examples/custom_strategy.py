"""A strategy of one's own: DDP that sends gradients as one byte a number, and keeps what rounding has lost.

`ByteDDP` is a class like drivetrain's own, and is treated like them: it is given to a trainer as it is, under every
launcher. What a rank has not sent yet goes into its next message (Seide et al. 2014), so that nothing is lost for good.
"""

# run: --epochs 3 --devices 2

from __future__ import annotations

import argparse
from typing import Any

import torch
import torch.distributed as dist
from sklearn.datasets import load_breast_cancer
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import drivetrain as dt


class Remainders:
    """What this rank's messages have left out so far.

    Attributes:
        of: By number of the bucket.
        bytes_sent: By this rank, to each other one.
        bytes_of_gradients: What plain DDP would have sent.
    """

    def __init__(self) -> None:
        self.of: dict[int, Tensor] = {}
        self.bytes_sent = self.bytes_of_gradients = 0


def send_bytes(kept: Remainders, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """The mean over ranks of gradients that are rounded to 255 steps each."""
    full = bucket.buffer()
    wanted = full + kept.of[bucket.index()] if bucket.index() in kept.of else full.clone()
    scale = wanted.abs().max().clamp(min=1e-30) / 127
    rounded = (wanted / scale).round().to(torch.int8)
    kept.of[bucket.index()] = wanted - rounded * scale

    message = torch.cat([scale.float().view(1).view(torch.int8), rounded])
    messages = [torch.empty_like(message) for _ in range(dist.get_world_size())]
    work = dist.all_gather(messages, message, async_op=True)
    kept.bytes_sent += message.nbytes
    kept.bytes_of_gradients += full.nbytes

    def mean(_: Any) -> Tensor:
        full.copy_(sum(one[4:] * one[:4].view(torch.float32) for one in messages) / len(messages))
        return full

    return work.get_future().then(mean)


class ByteDDP(dt.DDP):
    """DDP whose messages are a quarter as long as float32."""

    def __init__(self, **options: Any) -> None:
        self.remainders = Remainders()
        super().__init__(comm_hook=send_bytes, comm_state=self.remainders, **options)


class Diagnosis(dt.Module):
    """Whether a tumour is benign, from 30 measurements of its cells."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.BatchNorm1d(30, affine=False), nn.Linear(30, 64), nn.ReLU(), nn.Linear(64, 1))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        cells, is_benign = batch
        return F.binary_cross_entropy_with_logits(self.net(cells).squeeze(1), is_benign)

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        cells, is_benign = batch
        self.log("accuracy", ((self.net(cells).squeeze(1) > 0) == is_benign).double().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=3e-3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=2, help="ranks on this machine")
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()

    dt.seed_everything(1, verbose=False)
    cells, is_benign = load_breast_cancer(return_X_y=True)
    order = torch.randperm(len(cells), generator=torch.Generator().manual_seed(0))
    data = torch.tensor(cells, dtype=torch.float32)[order], torch.tensor(is_benign, dtype=torch.float32)[order]
    train, test = (TensorDataset(*(one[part] for one in data)) for part in (slice(200, None), slice(200)))
    strategy = ByteDDP()
    trainer = dt.Trainer(
        accelerator="cpu", devices=options.devices, strategy=strategy, max_epochs=options.epochs, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    model = Diagnosis()
    trainer.fit(model, DataLoader(train, batch_size=16 // options.devices, shuffle=True, drop_last=True))
    (result,) = trainer.test(model, DataLoader(test, batch_size=100), verbose=False)

    sent, plain = strategy.remainders.bytes_sent, strategy.remainders.bytes_of_gradients
    of_most = max(test.tensors[1].mean().item(), 1 - test.tensors[1].mean().item())
    trainer.print(f"bytes sent   {sent:,} instead of {plain:,}")
    trainer.print(f"accuracy {result['accuracy']:.3f} (has to be above {of_most:.3f}: always the same answer)")


if __name__ == "__main__":
    main()
