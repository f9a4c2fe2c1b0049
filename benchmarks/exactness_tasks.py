"""What is trained to judge a library's arithmetic: small regressions in float64, whose right answer can be computed.

`window` tasks: SGD on a linear model. Each optimizer step is compared with the exact gradient of the weighted mean loss
over the samples of its window. `ranks` tasks: AdamW steps of a small network with clipping, whose parameters are
compared between 2 ranks and one process. `uneven` tasks: SGD on the same linear model with ranks that hold different
numbers of batches, whose parameters are compared with one process that sees the same samples in each step.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, Subset, TensorDataset

from benchmarks.two_ranks import NUM_RANKS

NUM_FEATURES = 8
BATCH_SIZE = 4  # samples of a micro-batch
WINDOW = 4  # micro-batches of a window in one process; on several ranks so many fewer
WINDOW_SAMPLES = BATCH_SIZE * WINDOW
LEARNING_RATE = 0.125  # a power of two, so that dividing a change by it is exact
MAX_NORM = 0.5  # clips in most of the steps
SEED = 3

# scenario -> samples of an epoch
WINDOW_SAMPLES_OF = {"even": 64, "tail": 72, "ragged": 70, "tokens": 64}
RANKS_SAMPLES_OF = {"even": 80, "ragged": 70, "tokens": 80, "shuffled": 80}
RANKS_EPOCHS = 10  # of five windows each
UNEVEN_BATCHES = (6, 4)  # on each rank, all of them full
NUM_ODD = 37  # samples that the library shards itself
UNEVEN_KINDS = ("loaders", "streams", "odd")


class Stream(IterableDataset[Any]):
    """Samples one after the other, without a length."""

    def __init__(self, samples: Subset[Any]) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[Any]:
        return (self.samples[index] for index in range(len(self.samples)))


class Snapshots:
    """The parameters before the first and after each step of an optimizer."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self.taken = [self._copy()]
        optimizer.register_step_post_hook(lambda *_: self.taken.append(self._copy()))

    def _copy(self) -> list[Tensor]:
        return [parameter.detach().clone() for parameter in self._parameters]


@dataclass
class Task:
    """A model, its data, and how it is trained; the same on every rank.

    Attributes:
        model: Takes `(batch, 8)` float64, gives `(batch, 1)`.
        data: Features, targets, and the weight of each sample.
        optimizer: Of the model.
        window: Micro-batches of an optimizer step on each rank.
        num_epochs: Whole epochs.
        max_norm: Of the gradients of a step.
        has_weights: The loss is a mean over weights (tokens), not over samples.
        is_shuffled: Another order in each epoch.
        own: This rank's own samples, where the loader is sharded already: as a loader with a length, or a stream.
        seen: The first feature of each sample, batch by batch.
    """

    model: nn.Module
    data: TensorDataset
    optimizer: torch.optim.Optimizer
    window: int
    num_epochs: int = 1
    max_norm: float | None = None
    has_weights: bool = False
    is_shuffled: bool = False
    own: Any = None
    seen: list[Tensor] = field(default_factory=list)

    def loss_of(self, batch: Any) -> tuple[Tensor, Tensor]:
        """The weighted mean of the squared errors, and the weight that it is a mean over."""
        x, y, weight = batch
        self.seen.append(x[:, 0])
        errors = (self.model(x).squeeze(-1) - y).square()
        return (weight * errors).sum() / weight.sum(), weight.sum()

    def make_loader(self) -> DataLoader[Any]:
        """Micro-batches of the data, as one process would write it; where it is sharded already, of this rank's own."""
        if self.own is not None:
            return DataLoader(self.own, batch_size=BATCH_SIZE)
        return DataLoader(self.data, batch_size=BATCH_SIZE, shuffle=self.is_shuffled)

    def make_sharded_loader(self) -> DataLoader[Any]:
        """Micro-batches of this rank's share, in the same order whatever the number of ranks."""
        if self.own is not None:
            return self.make_loader()
        rank = int(os.environ.get("RANK", "0"))
        sampler: DistributedSampler[Any] = DistributedSampler(
            self.data, num_ranks(), rank, shuffle=self.is_shuffled, seed=SEED
        )
        return DataLoader(self.data, batch_size=BATCH_SIZE, sampler=sampler)

    def parameter_list(self) -> list[float]:
        """All parameters of the model, one after the other."""
        values: list[float] = torch.cat([p.detach().flatten() for p in self.model.parameters()]).tolist()
        return values


def num_ranks() -> int:
    """Ranks of this run, as the launcher says."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def _make_data(num_samples: int, *, has_weights: bool) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(num_samples, NUM_FEATURES, generator=generator, dtype=torch.float64)
    y = torch.randn(num_samples, generator=generator, dtype=torch.float64)
    weight = torch.randint(1, 20, (num_samples,), generator=generator).double() if has_weights else torch.ones_like(y)
    return TensorDataset(x, y, weight)


def make_window_task(scenario: str) -> Task:
    """One epoch of SGD on a linear model, in one process."""
    torch.manual_seed(SEED)
    model = nn.Linear(NUM_FEATURES, 1, dtype=torch.float64)
    has_weights = scenario == "tokens"
    data = _make_data(WINDOW_SAMPLES_OF[scenario], has_weights=has_weights)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    return Task(model, data, optimizer, WINDOW, has_weights=has_weights)


def make_ranks_task(scenario: str, num_epochs: int) -> Task:
    """AdamW with clipping on a small network, five steps an epoch; any number of ranks has the same windows."""
    torch.manual_seed(SEED)
    model = nn.Sequential(nn.Linear(NUM_FEATURES, 16), nn.Tanh(), nn.Linear(16, 1)).double()
    has_weights = scenario == "tokens"
    return Task(
        model,
        _make_data(RANKS_SAMPLES_OF[scenario], has_weights=has_weights),
        torch.optim.AdamW(model.parameters(), lr=1e-2),
        window=WINDOW // num_ranks(),
        num_epochs=num_epochs,
        max_norm=MAX_NORM,
        has_weights=has_weights,
        is_shuffled=scenario == "shuffled",
    )


def make_uneven_task(kind: str, rank: int) -> Task:
    """One epoch of SGD steps without accumulation, on two ranks that do not hold the same number of samples.

    Args:
        kind: `"loaders"`: each rank has a loader of its own, with a length; `"streams"`: without one; `"odd"`: the
            library shards a data set with an odd number of samples.
        rank: Which samples are its own.
    """
    torch.manual_seed(SEED)
    model = nn.Linear(NUM_FEATURES, 1, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    if kind == "odd":
        return Task(model, _make_data(NUM_ODD, has_weights=False), optimizer, window=1)
    data = _make_data(BATCH_SIZE * sum(UNEVEN_BATCHES), has_weights=False)
    first = BATCH_SIZE * sum(UNEVEN_BATCHES[:rank])
    own = Subset(data, range(first, first + BATCH_SIZE * UNEVEN_BATCHES[rank]))
    return Task(model, data, optimizer, window=1, own=Stream(own) if kind == "streams" else own)


def exact_uneven_parameters(kind: str) -> list[float]:
    """Parameters of one process whose steps are over the samples that all ranks have then."""
    task = make_uneven_task(kind, 0)
    for rows in _uneven_steps(kind):
        task.optimizer.zero_grad()
        task.loss_of(task.data[rows])[0].backward()
        task.optimizer.step()
    return task.parameter_list()


def _uneven_steps(kind: str) -> Iterator[list[int]]:
    """The samples of each step."""
    if kind == "odd":
        size = BATCH_SIZE * len(UNEVEN_BATCHES)
        yield from (list(range(first, min(first + size, NUM_ODD))) for first in range(0, NUM_ODD, size))
        return
    firsts = [BATCH_SIZE * sum(UNEVEN_BATCHES[:rank]) for rank in range(len(UNEVEN_BATCHES))]
    for step in range(max(UNEVEN_BATCHES)):
        yield [
            first + BATCH_SIZE * step + index
            for first, num_batches in zip(firsts, UNEVEN_BATCHES, strict=True)
            if step < num_batches
            for index in range(BATCH_SIZE)
        ]


def worst_step_error(scenario: str, train: Callable[[Task], None]) -> dict[str, float]:
    """Train a window task, and compare each of its steps with the exact one.

    Returns:
        The worst relative error of a step, the steps made, and those that an epoch should have.
    """
    task = make_window_task(scenario)
    snapshots = Snapshots(task.optimizer)
    train(task)
    judge = make_window_task(scenario)
    worst, taken = 0.0, snapshots.taken
    for index, (before, after) in enumerate(itertools.pairwise(taken)):
        with torch.no_grad():
            for parameter, value in zip(judge.model.parameters(), before, strict=True):
                parameter.copy_(value)
        judge.optimizer.zero_grad()
        first = index * WINDOW_SAMPLES % len(task.data)
        judge.loss_of(task.data[first : first + WINDOW_SAMPLES])[0].backward()
        exact = torch.cat([p.grad.flatten() for p in judge.model.parameters() if p.grad is not None])
        made = torch.cat([(a - b).flatten() for a, b in zip(before, after, strict=True)]) / LEARNING_RATE
        worst = max(worst, float((made - exact).norm() / exact.norm()))
    return {"worst": worst, "num_steps": len(taken) - 1, "num_expected": -(-len(task.data) // WINDOW_SAMPLES)}


def trained_parameters(scenario: str, train: Callable[[Task], None], num_epochs: int) -> dict[str, Any]:
    """Train a ranks task.

    Returns:
        Its parameters as one list, and the steps made.
    """
    task = make_ranks_task(scenario, num_epochs)
    snapshots = Snapshots(task.optimizer)
    torch.manual_seed(SEED)
    train(task)
    return {"parameters": task.parameter_list(), "num_steps": len(snapshots.taken) - 1}


assert WINDOW % NUM_RANKS == 0
