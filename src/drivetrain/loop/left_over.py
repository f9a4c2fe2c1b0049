"""What is still to do after the last window when a checkpoint is written in a hook; the run that goes on does it.

batch_end         the last micro-batch of a window: the loggers' row, on_step_end and validation are left
step_end          on_step_end: the hooks that follow, and validation
validation        a validation inside of an epoch: itself, or the hooks that follow in on_validation_end
epoch_validation  the one at the end of an epoch: the same, and the end of the epoch
epoch_end         on_train_epoch_end: the hooks that follow, and the loggers' row
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from drivetrain.base.interval import Crossings
from drivetrain.base.progress import Progress
from drivetrain.fabric.window import Window
from drivetrain.loop.hooks import Hooks

EVENTS = {
    "batch_end": "on_train_batch_end",
    "step_end": "on_step_end",
    "validation": "on_validation_end",
    "epoch_validation": "on_validation_end",
    "epoch_end": "on_train_epoch_end",
}


@dataclass
class LeftOver:
    """Where a run stood when its checkpoint was written.

    Attributes:
        stage: See above; `"window"` inside of a window, which has to be repeated; empty between two of them.
        owners: Whose hooks of the stage's event had not run.
        is_validated: The validation was over, and reported.
        is_over: The epoch had no more windows.
        before: Counters before the last window: steps, micro-batches, samples, micro-batches of the epoch, seconds.
        values: Of the epoch, that were not written yet.
        nums: Multiples of intervals that were over, by name.
    """

    stage: str = ""
    owners: list[str] = field(default_factory=list)
    is_validated: bool = False
    is_over: bool = False
    before: Sequence[float] = (0, 0, 0, 0, 0.0)
    values: dict[str, float] = field(default_factory=dict)
    nums: dict[str, list[Any]] = field(default_factory=dict)

    @property
    def ends_epoch(self) -> bool:
        """No window follows."""
        return self.stage in ("epoch_validation", "epoch_end")

    @property
    def is_heard(self) -> bool:
        """No hook of the epoch is left; it is only to be counted."""
        return self.stage == "epoch_end" and self.is_over and not self.owners

    def state_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    def counted_from(self, owner: str, now: Progress) -> Progress:
        """From where a callback counts what is due: from before the last step, if its hook has still to look at it."""
        if self.stage != "batch_end" and not (self.stage == "step_end" and owner in self.owners):
            return now
        step, micro_step, samples, epoch_micro_step, seconds = self.before
        return replace(
            now, step=int(step), micro_step=int(micro_step), samples=int(samples),
            epoch_micro_step=int(epoch_micro_step), seconds=seconds,
        )  # fmt: skip

    @staticmethod
    def read(state: Mapping[str, Any] | None) -> LeftOver | None:
        """What `state_dict` gave; `None` where nothing is left to do, or a window begins anew."""
        return None if state is None or state["stage"] in ("", "window") else LeftOver(**state)

    def go_on(self, **intervals: Crossings | None) -> None:
        """Let intervals be where they were, if they are the same."""
        for name, due in intervals.items():
            interval, num = self.nums.get(name, (None, 0))
            if due is not None and interval == str(due.interval):
                due.go_on(num)


@dataclass
class Boundary:
    """Where a loop is between two windows, for the checkpoint that may be written there.

    Attributes:
        stage: What runs now, as in `LeftOver`.
        before: As in `LeftOver`.
        is_validated: The validation inside of the epoch is over.
        values: Of the epoch, that are not written yet.
        window: The one that runs, or ran last.
        is_last: No window follows it in its epoch, as far as that is known.
    """

    stage: str = ""
    before: Sequence[float] = (0, 0, 0, 0, 0.0)
    is_validated: bool = False
    values: dict[str, float] = field(default_factory=dict)
    window: Window | None = None
    is_last: bool = False

    @property
    def is_last_batch(self) -> bool:
        """The micro-batch that runs, or ran last, is this rank's last one of its epoch, as far as that is known."""
        window = self.window
        return self.is_last and window is not None and (window.is_last or window.index + 1 >= window.rounds)

    def begin_window(self, progress: Progress, window: Window | None = None, *, is_last: bool = False) -> None:
        """A window follows.

        Args:
            progress: Before it.
            window: The window.
            is_last: No other one follows in the epoch, as far as that is known.
        """
        self.window, self.is_last = window, is_last
        self.stage, self.is_validated = "window", False
        self.before = (
            progress.step, progress.micro_step, progress.samples, progress.epoch_micro_step, progress.seconds,
        )  # fmt: skip

    def saved_progress(self, progress: Progress) -> dict[str, Any]:
        """The counters; inside of a window, which will be repeated, those of its beginning."""
        state = progress.state_dict()
        return {**state, "micro_step": self.before[1]} if self.stage == "window" else state

    def left_over(self, hooks: Hooks, *, is_reported: bool, is_over: bool, **due: Crossings | None) -> LeftOver:
        """What the run that goes on from a checkpoint that is written now has to do before its next window."""
        owners = hooks.owners_left(EVENTS.get(self.stage, ""))
        is_validated = self.is_validated or is_reported
        return LeftOver(self.stage, owners, is_validated, is_over, self.before, self.values, nums_of(**due))


def nums_of(**intervals: Crossings | None) -> dict[str, list[Any]]:
    """For `LeftOver.nums`."""
    return {name: [str(due.interval), due.num] for name, due in intervals.items() if due is not None}
