"""What happens once a checkpoint is there: `last.ckpt` leads to it, and those that have to go are deleted."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drivetrain.base.errors import CheckpointError, ConfigError
from drivetrain.base.locations import is_url
from drivetrain.callbacks.kept_checkpoints import SavePlan
from drivetrain.callbacks.last_pointer import point_last
from drivetrain.checkpoint.remote import put_text, remove

_log = logging.getLogger("drivetrain.callbacks")


@dataclass
class AfterSave:
    """The work of rank 0 after a save; it may run in the thread that wrote.

    Attributes:
        plan: What was saved.
        pointer: What is to lead to it; `None` for nothing.
        doomed: To be deleted.
        left: Those of them that could not be deleted.
    """

    plan: SavePlan
    pointer: str | None
    doomed: Sequence[str]
    left: list[str] = field(default_factory=list)

    def run(self) -> None:
        """Point, then delete.

        Ranks: 0.
        """
        if self.pointer is not None:
            self._point(self.pointer)
        self.left = [path for path in self.doomed if not remove(path)]
        if self.left:
            _log.warning("Could not delete %s; the next save tries again.", ", ".join(self.left))

    def _point(self, pointer: str) -> None:
        try:
            if is_url(pointer):
                put_text(pointer, f"{self.plan.path.rpartition('/')[2]}\n")
            else:
                point_last(Path(pointer), Path(self.plan.path))
        except (OSError, CheckpointError) as error:
            reason = error.strerror if isinstance(error, OSError) else error.what.removesuffix(".")
            _log.warning("%s does not lead to the newest checkpoint: %s.", pointer, reason)


def require_save_error_policy(policy: str) -> str:
    """What happens when a save fails: `"raise"` or `"warn"`.

    Raises:
        ConfigError: It is another one.
    """
    if policy not in ("raise", "warn"):
        raise ConfigError(
            f"on_save_error={policy!r} is not a policy.", code="save-error-policy", do="Use 'raise' or 'warn'."
        )
    return policy


@dataclass
class PendingSave:
    """A save that is being written beside training.

    Attributes:
        handle: Of the save.
        work: What comes after it.
        before: The state of the callback without it.
    """

    handle: Any
    work: AfterSave
    before: dict[str, Any]
