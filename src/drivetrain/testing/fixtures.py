"""Small modules and data for tests of equality: float64, seeded, without anything that differs between machines."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

NUM_FEATURES = 8
NUM_CLASSES = 4
PRIME_LENGTH = 997


def make_mlp(
    *,
    num_features: int = NUM_FEATURES,
    num_hidden: int = 16,
    num_outputs: int = NUM_CLASSES,
    dropout: float = 0.0,
    has_batch_norm: bool = False,
    seed: int = 0,
) -> nn.Sequential:
    """A float64 network of two layers. The global random state is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers: list[nn.Module] = [nn.Linear(num_features, num_hidden)]
        if has_batch_norm:
            layers.append(nn.BatchNorm1d(num_hidden))
        layers.append(nn.Tanh())
        if dropout:
            layers.append(nn.Dropout(dropout))
        layers.append(nn.Linear(num_hidden, num_outputs))
        return nn.Sequential(*layers).to(torch.float64)


def make_dataset(length: int, *, num_features: int = NUM_FEATURES, seed: int = 0) -> TensorDataset:
    """Samples `(features (num_features,) float64, target () int64)`."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(length, num_features, dtype=torch.float64, generator=generator)
    targets = torch.randint(NUM_CLASSES, (length,), generator=generator)
    return TensorDataset(features, targets)


class NumberedDataset(Dataset[tuple[Tensor, Tensor, int]]):
    """Samples that carry their number, so that a test can tell which were seen: `(features, target, number)`."""

    def __init__(self, length: int = PRIME_LENGTH, *, num_features: int = NUM_FEATURES, seed: int = 0) -> None:
        self._samples = make_dataset(length, num_features=num_features, seed=seed)

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, int]:
        features, target = self._samples[index]
        return features, target, index


def max_difference(left: nn.Module, right: nn.Module) -> float:
    """The largest absolute difference between the parameters and floating-point buffers of two modules."""
    right_state = right.state_dict()
    differences = [
        (value - right_state[name]).abs().max().item()
        for name, value in left.state_dict().items()
        if value.is_floating_point() and value.numel()
    ]
    return max(differences, default=0.0)
