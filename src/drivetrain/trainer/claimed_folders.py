"""The folders into which a fit saves: another process that goes on from there ends this one's right to."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from drivetrain.base.errors import CheckpointError
from drivetrain.base.fence import FENCE
from drivetrain.base.locations import is_url
from drivetrain.callbacks.model_checkpoint import ModelCheckpoint
from drivetrain.checkpoint.claim import claim

_log = logging.getLogger("drivetrain.trainer")


@contextmanager
def claimed_folders(run: Any) -> Iterator[None]:
    """From here on rank 0, which gives checkpoints their names, looks before whether it still may.

    A folder in which that cannot be noted is not watched: whether it can be saved to, the saves will say.

    Ranks: any.
    """
    trainer = run.trainer
    folders = {str(one.dirpath) for one in trainer.callbacks if isinstance(one, ModelCheckpoint)}
    with ExitStack() as stack:
        for folder in sorted(folders) if trainer.is_global_zero and not trainer.fast_dev_run else ():
            try:
                successor = claim(folder, run.lineage, goes_on=_is_below(run.resumed_from, folder))
            except CheckpointError as error:
                _log.warning("Another process that goes on with this run will not be noticed: %s", error)
                continue
            stack.enter_context(FENCE.watching(folder, successor))
        yield


def _is_below(location: str, folder: str) -> bool:
    if is_url(folder) or not location:
        return location.startswith(f"{folder}/")
    return os.path.realpath(location).startswith(f"{os.path.realpath(folder)}/")
