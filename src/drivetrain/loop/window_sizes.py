"""How many micro-batches a window holds on each rank, over a run."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from drivetrain.base.errors import ConfigError
from drivetrain.base.progress import Progress

Sizes = int | Mapping[int, int] | Callable[[int], int]


@dataclass(frozen=True)
class WindowSizes:
    """A pure function of where the run stands, so that a resumed run has the windows of one that was not stopped.

    Attributes:
        sizes: One number; the first epoch of each size (`{0: 8, 4: 4}`, 1 before the first of them); or a function of
            the optimizer steps done.
        name: Of the argument, for errors.

    Raises:
        ConfigError: A size is not a number from 1.
    """

    sizes: Sizes
    name: str = "accumulate_grad_batches"

    def __post_init__(self) -> None:
        sizes = self.sizes
        if isinstance(sizes, Mapping):
            if not sizes or not all(_is_whole(epoch, 0) and _is_whole(size, 1) for epoch, size in sizes.items()):
                raise ConfigError(
                    f"{self.name}={dict(sizes)!r} does not name epochs and sizes.",
                    code="window-size",
                    do="Give the first epoch of each size, such as {0: 8, 4: 4}: epochs from 0, sizes from 1.",
                )
            object.__setattr__(self, "sizes", {0: 1, **dict(sorted(sizes.items()))})
        elif not callable(sizes) and not _is_whole(sizes, 1):
            raise ConfigError(
                f"{self.name}={sizes!r} is not a whole number from 1.", code="limits", do="Use 1 or more."
            )

    def at(self, progress: Progress) -> int:
        """The size of the window that begins here.

        Raises:
            ConfigError: The function gave something else than a number from 1.
        """
        sizes = self.sizes
        if isinstance(sizes, int):
            return sizes
        return self._of_epoch(progress.epoch) if isinstance(sizes, Mapping) else self._of_step(progress.step)

    def num_steps(self, batches: int, epochs: int, most: float = math.inf) -> int | float:
        """Optimizer steps of so many epochs of `batches` micro-batches, or `most` if that is less."""
        sizes = self.sizes
        if isinstance(sizes, int):
            return min(most, math.ceil(batches / sizes) * epochs)
        if isinstance(sizes, Mapping):
            last = max(sizes)
            few = sum(math.ceil(batches / self._of_epoch(epoch)) for epoch in range(min(epochs, last)))
            return min(most, few + max(0, epochs - last) * math.ceil(batches / self._of_epoch(last)))
        step = 0
        for _ in range(epochs):
            left = batches
            while left > 0 and step < most:
                left -= self._of_step(step)
                step += 1
        return step

    def _of_epoch(self, epoch: int) -> int:
        assert isinstance(self.sizes, Mapping)
        first = list(self.sizes)
        return self.sizes[first[bisect_right(first, epoch) - 1]]

    def _of_step(self, step: int) -> int:
        assert callable(self.sizes)
        size = self.sizes(step)
        if not _is_whole(size, 1):
            raise ConfigError(
                f"{self.name} gave {size!r} after {step} steps.",
                code="window-size",
                do="Let it return a whole number of micro-batches from 1.",
            )
        return size


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
