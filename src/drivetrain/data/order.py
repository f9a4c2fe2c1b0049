"""The order of an epoch: a pure function of seed and epoch, the same on every rank, drawn from no global state."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch

from drivetrain.base.errors import DataError
from drivetrain.base.rng import forked_rng, mix_seed

T = TypeVar("T")

# A sampler without a length that gives more than this is taken for endless.
MOST_UNSIZED = 1_000_000


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

    The global random state is as it was afterwards, and so is a `generator` that the sampler has. A sampler with a
    `set_epoch` is told the epoch. An epoch of an endless sampler is as long as its `__len__` says.

    Raises:
        DataError: It is endless and has no length.
    """
    tell_parts(sampler, epoch, names=("sampler", "batch_sampler"))
    own = getattr(sampler, "generator", None)
    generator = own if isinstance(own, torch.Generator) else None
    state = generator.get_state() if generator is not None else None
    length = length_of(sampler)
    most = MOST_UNSIZED if length is None else 2 * length + 1
    try:
        if generator is not None:
            generator.manual_seed(mix_seed(seed, epoch))
        with forked_rng(mix_seed(seed, epoch)):
            order = list(itertools.islice(sampler, most + 1))
    finally:
        if generator is not None and state is not None:
            generator.set_state(state)
    if len(order) <= most:
        return order
    if length is None:
        raise DataError(
            f"{type(sampler).__name__} has no length, and had not ended after {most} entries.",
            code="loader-length",
            do="Give it a __len__ that says how many make an epoch, or pass use_distributed_sampler=False.",
        )
    return order[:length]


def length_of(obj: Any) -> int | None:
    """What `len` says; `None` where there is none."""
    try:
        return len(obj)
    except (TypeError, NotImplementedError):
        return None


def tell_epoch(obj: Any, epoch: int) -> None:
    """Call `set_epoch` where there is one."""
    set_epoch: Callable[[int], Any] | None = getattr(obj, "set_epoch", None)
    if callable(set_epoch):
        set_epoch(epoch)


def tell_parts(obj: Any, epoch: int, *, names: Iterable[str] = ("sampler", "batch_sampler", "dataset")) -> None:
    """Call `set_epoch` on an object and on the parts of it that have these names, wrapped ones too.

    `datasets`, as a concatenation holds them, count as `dataset`.
    """
    names = (*names, "datasets") if "dataset" in names else tuple(names)
    waiting: list[Any] = [obj]
    told: set[int] = set()
    while waiting:
        part = waiting.pop()
        if part is None or id(part) in told:
            continue
        told.add(id(part))
        tell_epoch(part, epoch)
        # Inside a user's objects only what they hold: their properties may do work, or answer for others.
        held = getattr(part, "__dict__", {})
        for name in names:
            inner = getattr(part, name, None) if part is obj else held.get(name)
            waiting += inner if isinstance(inner, (list, tuple)) else [inner]
