"""An action on some ranks that all ranks have to know the end of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from drivetrain.base.errors import CheckpointError
from drivetrain.checkpoint.write_errors import may_pass
from drivetrain.comm.collectives import Collectives


@dataclass
class Failure:
    """What ranks know of a failure of any of them.

    Attributes:
        may_pass: On all ranks that failed it is such that trying again may help.
    """

    may_pass: bool = False


def together(
    collectives: Collectives, action: Callable[[], Any], *, only_zero: bool = False, failure: Failure | None = None
) -> Any:
    """Run an action; if it fails on any rank, fail on all with the first failure.

    Ranks: all (one gather of small objects, none on one rank).

    Args:
        collectives: Of the ranks.
        action: Called in each of them.
        only_zero: Called on rank 0 alone.
        failure: Is told about a failure, alike on all ranks.
    """
    error: Exception | None = None
    result = None
    if collectives.is_global_zero or not only_zero:
        try:
            result = action()
        except Exception as caught:
            error = caught
    own = None if error is None else (f"{type(error).__name__}: {error}", may_pass(error))
    told = collectives.gather_objects(own)
    failed = [(rank, *one) for rank, one in enumerate(told) if one is not None]
    if not failed:
        return result
    if failure is not None:
        failure.may_pass = all(passes for _, _, passes in failed)
    if error is not None:
        raise error
    rank, text, _ = failed[0]
    raise CheckpointError(
        f"Rank {rank} failed: {text}",
        code="checkpoint-other-rank",
        do="Nothing was replaced; see that rank's error.",
        rank=(collectives.rank, collectives.world_size),
    )
