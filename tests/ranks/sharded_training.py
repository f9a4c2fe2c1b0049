"""A module with parts of its own, and ways to train it, that tests of sharded strategies share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from drivetrain import FSDP, Fabric
from drivetrain.cluster.read_cluster import current_cluster
from drivetrain.strategies.prepared import Prepared
from drivetrain.strategies.strategy import Strategy
from drivetrain.testing.comm_counter import CommCounter
from drivetrain.testing.fixtures import NUM_CLASSES, NUM_FEATURES, make_dataset
from drivetrain.testing.strategy_contract import SCATTERS, whole

DATA = make_dataset(400)
NUM_PARTS = 4  # of `Deep`: three blocks and the rest


class Block(nn.Module):
    """A residual block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, features: Tensor) -> Tensor:
        return features + torch.tanh(self.linear(features))


class Deep(nn.Module):
    """Three blocks, each of them a part of its own, between two layers; and a parameter without a dim."""

    def __init__(self, *, width: int = 10, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.first = nn.Linear(NUM_FEATURES, width)
            self.blocks = nn.ModuleList(Block(width) for _ in range(3))
            self.last = nn.Linear(width, NUM_CLASSES)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.to(torch.float64)

    def forward(self, features: Tensor) -> Tensor:
        features = self.first(features)
        for block in self.blocks:
            features = block(features)
        outputs: Tensor = self.last(features) * self.scale
        return outputs

    def loss_on(self, features: Tensor, targets: Tensor) -> Tensor:
        """The mean loss of a batch."""
        return functional.cross_entropy(self(features), targets)


def samples(numbers: Sequence[int]) -> tuple[Tensor, Tensor]:
    """These samples as a batch."""
    features, targets = DATA.tensors
    return features[list(numbers)], targets[list(numbers)]


@contextmanager
def opened(**options: Any) -> Iterator[FSDP]:
    """A strategy that is open in this rank for the length of a block."""
    precision = options.pop("precision", None)
    strategy = FSDP(**options)
    strategy.open(current_cluster(), torch.device("cpu"), precision=precision)
    try:
        yield strategy
    finally:
        strategy.close()


@contextmanager
def sharded_fabric(strategy: Strategy, **options: Any) -> Iterator[Fabric]:
    """A fabric with a strategy of this rank."""
    fabric = Fabric(accelerator="cpu", devices=current_cluster().world_size, strategy=strategy, **options)
    fabric.launch()
    try:
        yield fabric
    finally:
        fabric.close()


def whole_gradients(module: nn.Module) -> dict[str, Tensor | None]:
    """The gradients by name, whole, on every rank."""
    return {name: None if p.grad is None else whole(p.grad).clone() for name, p in module.named_parameters()}


def whole_weights(strategy: Strategy, prepared: Prepared) -> dict[str, Tensor]:
    """The module's state, whole, on every rank."""
    return {name: value.clone() for name, value in strategy.full_state({"model": prepared})["model"].items()}


def mean_gradients(shares: Sequence[Sequence[int]], module: nn.Module | None = None) -> dict[str, Tensor]:
    """In one process: the mean over shares of the gradients of their mean losses."""
    alone: Any = Deep() if module is None else module
    for share in shares:
        (alone.loss_on(*samples(share)) / len(shares)).backward()
    return {name: p.grad for name, p in alone.named_parameters() if p.grad is not None}


def difference(left: dict[str, Any], right: dict[str, Any]) -> float:
    """The largest one over all tensors."""
    assert left.keys() == right.keys(), left.keys() ^ right.keys()
    return max((left[name] - right[name]).abs().max().item() for name in right)


def num_scatters(counter: CommCounter) -> int:
    """Reduce-scatters that were counted."""
    return counter.num_calls(*SCATTERS)
