"""What a trainer does at the moment."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class TrainerFn(StrEnum):
    """What a trainer was asked for."""

    FITTING = "fit"
    VALIDATING = "validate"
    TESTING = "test"
    PREDICTING = "predict"


class RunningStage(StrEnum):
    """What runs inside of it."""

    TRAINING = "train"
    SANITY_CHECKING = "sanity_check"
    VALIDATING = "validate"
    TESTING = "test"
    PREDICTING = "predict"


class TrainerStatus(StrEnum):
    """How far it has come; `PREEMPTED`: a signal has told the run to end, and it is saved."""

    INITIALIZING = "initializing"
    RUNNING = "running"
    FINISHED = "finished"
    INTERRUPTED = "interrupted"
    PREEMPTED = "preempted"


@dataclass
class TrainerState:
    """What a trainer does now. Each value equals its text: `TrainerFn.FITTING == "fit"`.

    Attributes:
        fn: A `TrainerFn`, or `None`.
        stage: A `RunningStage`, or `None`.
        status: A `TrainerStatus`.
    """

    fn: str | None = None
    stage: str | None = None
    status: str = TrainerStatus.INITIALIZING

    @property
    def finished(self) -> bool:
        """The last run ended by itself."""
        return self.status == TrainerStatus.FINISHED
