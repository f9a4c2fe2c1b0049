"""Which checkpoint a run goes on from, once all ranks are there to look for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drivetrain.base.errors import CheckpointError, ConfigError
from drivetrain.callbacks.model_checkpoint import folders_of_run
from drivetrain.checkpoint.manifest import read_manifest
from drivetrain.fabric.newest import newest_checkpoint


@dataclass(frozen=True)
class CheckpointSearch:
    """What the user asked for: the newest checkpoint of the run that is whole.

    The one that this trainer saved last goes before those that are in its folder besides.

    Attributes:
        asked: As it was written, e.g. `resume='auto'`.
        is_optional: If there is none, the run begins from the start.
    """

    asked: str
    is_optional: bool = False

    def find(self, run: Any) -> Path | None:
        """The newest checkpoint that verifies; `None` to begin from the start. Rank 0 says which for training.

        Ranks: all.

        Raises:
            CheckpointError: On every rank, if there is none and there has to be one.
        """
        trainer, collectives = run.trainer, run.fabric.collectives
        trains = run.request.stage == "fit"
        keeper = trainer.checkpoint_callback
        found = newest_checkpoint(
            collectives,
            lambda: folders_of_run(trainer),
            first=Path(keeper.last_model_path) if keeper is not None else None,
            needs_optimizers=trains,
        )
        if found is None and not self.is_optional:
            raise CheckpointError(
                f"{self.asked}, but no checkpoint of this run is whole.",
                code="checkpoint-missing",
                do="Give the path of a checkpoint, or train with a ModelCheckpoint first.",
            )
        if trains and collectives.is_global_zero:
            print(f"{self.asked}: {_in_words(trainer, found)}.")
        return found


def make_search(resume: str | Path | None, ckpt_path: str | Path | None) -> CheckpointSearch | Path | str | None:
    """What `fit` was asked to go on from.

    Raises:
        ConfigError: Both were given.
    """
    if resume is None:
        return ckpt_path
    if ckpt_path is not None:
        raise ConfigError(
            f"fit got resume={str(resume)!r} and ckpt_path={str(ckpt_path)!r}.",
            code="resume-twice",
            do="Give one of the two.",
        )
    if resume == "auto":
        return CheckpointSearch("resume='auto'", is_optional=True)
    return resume


def _in_words(trainer: Any, found: Path | None) -> str:
    if found is not None:
        return f"goes on from {found} (step {read_manifest(found).step})"
    return f"no whole checkpoint in {folders_of_run(trainer)[0]}, begins from the start"
