"""What a process counts while it moves: batches handed out, bytes written. Whoever watches it looks at the number."""

from __future__ import annotations


class Pulse:
    """A number that grows with each sign of progress. Counting is one addition; nothing is sent.

    Attributes:
        count: Signs of progress so far.
        posts: Messages to the other ranks so far that no process group counts.
    """

    __slots__ = ("count", "posts")

    def __init__(self) -> None:
        self.count = self.posts = 0


PULSE = Pulse()  # of this process: to be alive is nothing that one object of it could hold


def note_progress() -> None:
    """Say that this rank moves, in long work of its own that other ranks wait for.

    What drivetrain does says so by itself: steps, batches, collectives, bytes of a checkpoint.

    Ranks: any.
    """
    PULSE.count += 1
