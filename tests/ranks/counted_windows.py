"""A module that counts what its steps send, the data that it sees, and runs of one epoch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import drivetrain
from drivetrain.testing.comm_counter import CommCounter
from drivetrain.testing.fixtures import make_dataset, make_mlp
from tests.ranks.open_fabric import sgd

SMALL = 128  # bytes: the most that the one message beside the gradients may hold
DATA = make_dataset(400)


class Recorder(drivetrain.Module):
    """Counts what is sent in each optimizer step, and notes which samples were seen."""

    def __init__(self, weight_of: Any = None) -> None:
        super().__init__()
        self.net = make_mlp()
        self.weight_of = weight_of
        self.counter = CommCounter()
        self.sent: list[dict[str, tuple[int, int]]] = []
        self.seen: list[int] = []

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if batch_idx % self.trainer.accumulate_grad_batches == 0:
            self.counter.__enter__()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        features, targets = batch
        self.seen += [find(row) for row in features]
        loss = functional.cross_entropy(self.net(features), targets)
        weight = None if self.weight_of is None else self.weight_of(self.global_rank, batch_idx)
        return None if weight == "none" else {"loss": loss, "weight": weight}

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self.global_step > len(self.sent):
            self.counter.__exit__(None, None, None)
            self.sent.append({name: (one.calls, one.bytes) for name, one in self.counter.counts().items()})
            self.counter.clear()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def find(row: Tensor) -> int:
    """The number of a sample."""
    return int((DATA.tensors[0] == row).all(dim=1).nonzero()[0])


def fit(module: drivetrain.Module, *loaders: Any, max_epochs: int = 1, **options: Any) -> drivetrain.Trainer:
    """A run of `Trainer.fit`, without anything beside it."""
    trainer = drivetrain.Trainer(
        accelerator="cpu", max_epochs=max_epochs, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, **options,
    )  # fmt: skip
    trainer.fit(module, *loaders)
    trainer._fabric.close()
    return trainer


def check_sent(sent: list[dict[str, tuple[int, int]]], full: int, num_windows: int, *, num_extra: int = 0) -> None:
    """One all-reduce of the parameters and at most one small message in each window.

    DDP may beside send `num_extra` small messages in each window, and orders its buckets anew once in a run.
    """
    assert len(sent) == num_windows
    orderings = [window.pop("broadcast_") for window in sent if "broadcast_" in window]
    assert len(orderings) <= 1 and all(size <= SMALL for _, size in orderings)
    for number, window in enumerate(sent):
        assert set(window) == {"allreduce_"}, window
        calls, size = window["allreduce_"]
        assert 1 <= calls <= 2 + num_extra, (number, window)
        assert full <= size <= full + SMALL, (number, window)


def with_sgd(module: nn.Module) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A module and its optimizer."""
    return module, sgd(module)
