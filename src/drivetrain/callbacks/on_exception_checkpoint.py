"""A checkpoint of a run that an exception ends."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from drivetrain.base.locations import join, locate
from drivetrain.loop.callback import Callback

_log = logging.getLogger("drivetrain.callbacks")


class OnExceptionCheckpoint(Callback):
    """Saves a run of one rank when an exception ends it in training, to go on from or to look at.

    On several ranks nothing is saved, and that is said: the other ranks may not be there, and a save needs all of them.
    Batch statistics and random state include the window that was broken off; its gradients are in no step. If the save
    fails, the exception that ended the run is still the one that is raised.

    Args:
        dirpath: Where; a directory or a URL.
        filename: Of the checkpoint, without `.ckpt`.
    """

    FILE_EXTENSION = ".ckpt"
    runs_last = True

    def __init__(self, dirpath: str | Path, filename: str = "on_exception") -> None:
        self.dirpath, self.filename = locate(dirpath), filename

    @property
    def ckpt_path(self) -> str:
        """The checkpoint."""
        return join(self.dirpath, f"{self.filename}{self.FILE_EXTENSION}")

    @property
    def state_key(self) -> str:
        """Tells them apart by where they save."""
        return f"{type(self).__qualname__}({self.ckpt_path})"

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Save, where no other rank has to take part."""
        if trainer.state.fn != "fit" or trainer.fast_dev_run:
            return
        kind = type(exception).__name__
        if trainer.world_size > 1:
            _log.warning("Not saved on %s: the other ranks may not be there.", kind)
            return
        try:
            trainer.save_checkpoint(self.ckpt_path)
        except Exception as error:  # the exception that ends the run is what the user has to see
            _log.warning("Not saved on %s: %s", kind, error)
