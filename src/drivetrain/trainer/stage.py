"""What a trainer does at the moment."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class TrainerState:
    """What a trainer does now.

    Attributes:
        fn: `"fit"`, `"validate"`, `"test"`, `"predict"`, or `None`.
        stage: What runs inside: `"train"`, `"validate"`, `"sanity_check"`, `"test"`, `"predict"`, or `None`.
        status: `"initializing"`, `"running"`, `"finished"`, `"interrupted"` by an exception, or `"preempted"`: a signal
            has told the run to end, and it is saved.
    """

    fn: str | None = None
    stage: str | None = None
    status: str = "initializing"

    @property
    def finished(self) -> bool:
        """The last run ended by itself."""
        return self.status == "finished"
