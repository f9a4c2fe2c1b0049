"""The batches of an evaluation, where ranks may hold different numbers of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from drivetrain.data.loader import Loader
from drivetrain.fabric.window import END
from drivetrain.strategies.prepared import Prepared
from drivetrain.strategies.strategy import Strategy


def evaluation_batches(
    loader: Loader,
    strategy: Strategy,
    prepared: Prepared,
    *,
    method: str,
    limit: int | None = None,
    leaves_after: Callable[[int], bool] = lambda number: False,
) -> Iterator[tuple[int, Any]]:
    """The batches of this rank, numbered. Where calls communicate, this rank joins those that it has no batch for.

    Ranks: all (a small message for each batch of a loader without a length, where calls communicate).

    Args:
        loader: Of this rank.
        strategy: Knows whether calls communicate.
        prepared: The module that is called once for each batch.
        method: What is called.
        limit: Batches at most.
        leaves_after: Called after each number; it may end the evaluation, on all ranks alike.
    """
    if not strategy.traits.communicates_in_forward or strategy.collectives.world_size == 1:
        for number, batch in itertools.islice(enumerate(loader), limit):
            yield number, batch
            if leaves_after(number):
                return
        return
    batches, rounds = iter(loader), loader.num_rounds
    for number in itertools.count():
        if number in (limit, rounds):
            return
        batch = next(batches, END)
        if rounds is None and not strategy.collectives.agree([float(batch is not END)])[0]:
            return
        if batch is END:
            strategy.call_idle(prepared, method)
        else:
            yield number, batch
        if leaves_after(number):
            return
