"""The one small message of a window: what ranks have to know of each other before they step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from drivetrain.comm.collectives import Collectives
from drivetrain.comm.shared_board import Usual


class Agreed(NamedTuple):
    """What ranks tell each other once in a window; sums over ranks.

    Attributes:
        weight: Of the micro-batches (nan where one is on a device).
        stop: Ranks that want the run to stop.
        end: Ranks that were told by a signal to end.
        nonfinite: Ranks with a loss that is inf or nan.
        filled: Ranks whose micro-batches fill the window.
        complete: Ranks that have all that the window may still hold in this epoch.
        micro_batches: That the ranks have, together.
        samples: That the ranks have in them.
        out_of_memory: Ranks whose memory ran out.
    """

    weight: float
    stop: float
    end: float
    nonfinite: float
    filled: float
    complete: float
    micro_batches: float
    samples: float
    out_of_memory: float


def usual_agreement(weight: float, world_size: int) -> Usual:
    """What ranks say of a window of one micro-batch that has the nominal weight: there is nothing to tell."""
    usual = Usual(Agreed(weight, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, weight, 0.0), world_size)
    usual.sums = Agreed(*usual.sums)
    return usual


class Agreement:
    """Sums over ranks that are on their way while the last backward runs. Nothing is sent on one rank.

    Args:
        collectives: Of the run.
    """

    def __init__(self, collectives: Collectives) -> None:
        self._collectives = collectives
        self._finish: Callable[[], Sequence[float]] | None = None
        self._sums: Agreed | None = None

    @property
    def has_begun(self) -> bool:
        """The message was sent."""
        return self._finish is not None

    @property
    def known(self) -> Agreed | None:
        """What was agreed, if it was asked for already."""
        return self._sums

    def begin(self, own: Sequence[float], usual: Usual | None = None) -> None:
        """Send this rank's values.

        Ranks: all (one all-reduce on the CPU), with what is usual or without it.
        """
        if usual is None:
            self._finish = self._collectives.start_agreement(own)
        else:
            self._finish = self._collectives.start_usual(own, usual)

    def result(self) -> Agreed:
        """The sums; waits for the ranks that are behind.

        Ranks: any, once the message was sent.
        """
        if self._sums is None:
            assert self._finish is not None
            sums = self._finish()
            self._sums = sums if isinstance(sums, Agreed) else Agreed(*sums)
        return self._sums
