"""What only rank 0 does, also outside of a run."""

from __future__ import annotations

import functools
import logging
import sys
import warnings
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from drivetrain.cluster.read_cluster import current_cluster

_P = ParamSpec("_P")
_T = TypeVar("_T")


def rank_zero_only(function: Callable[_P, _T]) -> Callable[_P, _T | None]:
    """A function that runs on rank 0 alone, and gives `None` on the others. It must not communicate."""

    @functools.wraps(function)
    def on_rank_zero(*args: _P.args, **kwargs: _P.kwargs) -> _T | None:
        return function(*args, **kwargs) if current_cluster().rank == 0 else None

    return on_rank_zero


@rank_zero_only
def rank_zero_info(*args: object) -> None:
    """Print to stderr on rank 0."""
    print(*args, file=sys.stderr)


@rank_zero_only
def rank_zero_debug(*args: object) -> None:
    """Log, at the level of debugging, on rank 0."""
    logging.getLogger("drivetrain").debug(" ".join(map(str, args)))


@rank_zero_only
def rank_zero_warn(message: str, category: type[Warning] = UserWarning, stacklevel: int = 1) -> None:
    """Warn on rank 0, of the line that calls this."""
    warnings.warn(message, category, stacklevel=stacklevel + 2)
