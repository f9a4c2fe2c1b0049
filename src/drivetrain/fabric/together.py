"""An action on some ranks that all ranks have to know the end of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from drivetrain.base.errors import CheckpointError
from drivetrain.comm.collectives import Collectives


def together(collectives: Collectives, action: Callable[[], Any], *, only_zero: bool = False) -> Any:
    """Run an action; if it fails on any rank, fail on all with the first failure.

    Ranks: all (one gather of small objects, none on one rank).
    """
    error: Exception | None = None
    result = None
    if collectives.is_global_zero or not only_zero:
        try:
            result = action()
        except Exception as caught:
            error = caught
    if collectives.world_size == 1:
        if error is not None:
            raise error
        return result
    told = collectives.gather_objects(None if error is None else f"{type(error).__name__}: {error}")
    failed = [(rank, text) for rank, text in enumerate(told) if text is not None]
    if not failed:
        return result
    if error is not None:
        raise error
    rank, text = failed[0]
    raise CheckpointError(
        f"Rank {rank} failed: {text}",
        code="checkpoint-other-rank",
        do="Nothing was replaced; see that rank's error.",
        rank=(collectives.rank, collectives.world_size),
    )
