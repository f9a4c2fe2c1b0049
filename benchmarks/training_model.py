"""The model, data and clock of the overhead benchmark, the same for every peer."""

from __future__ import annotations

import time

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, TensorDataset

NUM_FEATURES, NUM_HIDDEN, NUM_CLASSES = 64, 128, 10
BATCH_SIZE = 32
NUM_STORED = 64 * BATCH_SIZE  # samples held; an epoch of any length goes through them again and again
LEARNING_RATE = 0.01


class Cycle(Dataset[tuple[Tensor, ...]]):
    """A map-style data set of any length over few stored samples."""

    def __init__(self, num_samples: int) -> None:
        generator = torch.Generator().manual_seed(1)
        self._stored = TensorDataset(
            torch.randn(NUM_STORED, NUM_FEATURES, generator=generator),
            torch.randint(NUM_CLASSES, (NUM_STORED,), generator=generator),
        )
        self._num_samples = num_samples

    def __len__(self) -> int:
        return self._num_samples

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        sample: tuple[Tensor, ...] = self._stored[index % NUM_STORED]
        return sample


def make_loader(num_steps: int) -> DataLoader[tuple[Tensor, ...]]:
    """One epoch of so many steps, in order, without workers."""
    return DataLoader(Cycle(num_steps * BATCH_SIZE), batch_size=BATCH_SIZE)


def make_model() -> nn.Sequential:
    """A perceptron so small that the loop around it shows; the same weights each time."""
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(NUM_FEATURES, NUM_HIDDEN), nn.ReLU(), nn.Linear(NUM_HIDDEN, NUM_CLASSES))


def make_optimizer(module: nn.Module) -> torch.optim.Optimizer:
    """SGD over all parameters."""
    return torch.optim.SGD(module.parameters(), lr=LEARNING_RATE)


def loss_of(scores: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy."""
    return functional.cross_entropy(scores, labels)


class StepClock:
    """Times the steps after the first ones, from inside the step: set-up and end of a run are left out.

    Args:
        num_warm: Steps that are not timed.
    """

    def __init__(self, num_warm: int) -> None:
        self._num_warm = num_warm
        self._num_ticks = 0
        self._begin = self._end = self._cpu_begin = self._cpu_end = 0.0

    def tick(self) -> None:
        """A step begins. Called first thing in each step."""
        if self._num_ticks == self._num_warm:
            self._begin, self._cpu_begin = time.perf_counter(), time.process_time()
        self._end, self._cpu_end = time.perf_counter(), time.process_time()
        self._num_ticks += 1

    def readings(self) -> dict[str, float]:
        """Wall and processor time of a step, in microseconds; the latter over all threads."""
        num_timed = self._num_ticks - 1 - self._num_warm
        if num_timed < 1:
            raise ValueError(f"{self._num_ticks} steps were made; more than {self._num_warm + 1} are needed.")
        return {
            "us_per_step": (self._end - self._begin) / num_timed * 1e6,
            "cpu_us_per_step": (self._cpu_end - self._cpu_begin) / num_timed * 1e6,
            "num_timed": num_timed,
        }
