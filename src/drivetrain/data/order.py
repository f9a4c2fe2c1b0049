"""The order of an epoch: a pure function of seed and epoch, the same on every rank, drawn from no global state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch

from drivetrain.base.rng import forked_rng, mix_seed

T = TypeVar("T")


def epoch_order(num_samples: int, *, seed: int, epoch: int, is_shuffled: bool) -> Sequence[int]:
    """Indices 0 to `num_samples - 1` in the order of an epoch.

    Args:
        num_samples: Samples of the data set.
        seed: Of the run.
        epoch: Each has an order of its own.
        is_shuffled: A random permutation; otherwise ascending.
    """
    if not is_shuffled:
        return range(num_samples)
    generator = torch.Generator().manual_seed(mix_seed(seed, epoch))
    order: list[int] = torch.randperm(num_samples, generator=generator).tolist()
    return order


def drawn_order(sampler: Iterable[T], *, seed: int, epoch: int) -> list[T]:
    """What a user's own sampler gives in an epoch, with random state that depends on seed and epoch alone.

    The global random state is as it was afterwards. A sampler with a `set_epoch` is told the epoch; one with a
    `generator` of its own gets that one seeded for the epoch.
    """
    tell_epoch(sampler, epoch)
    generator = getattr(sampler, "generator", None)
    if isinstance(generator, torch.Generator):
        generator.manual_seed(mix_seed(seed, epoch))
    with forked_rng(mix_seed(seed, epoch)):
        return list(sampler)


def tell_epoch(obj: Any, epoch: int) -> None:
    """Call `set_epoch` where there is one."""
    set_epoch: Callable[[int], Any] | None = getattr(obj, "set_epoch", None)
    if callable(set_epoch):
        set_epoch(epoch)
