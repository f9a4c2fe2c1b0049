"""Floor 8: what a test of a user's own training, strategy, loader or callback needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from drivetrain.testing.same_run import Stop, assert_same_run

__all__ = ["Stop", "assert_same_run"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'drivetrain.testing' has no attribute {name!r}")
    from drivetrain.testing import same_run  # only here: the ranks of a test import this folder, too

    return getattr(same_run, name)
