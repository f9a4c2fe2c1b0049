"""Which checkpoint a run goes on from, once all ranks are there to look for it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drivetrain.base.errors import CheckpointError, ConfigError
from drivetrain.base.locations import join, locate
from drivetrain.callbacks.checkpoint_place import FOLDER_NAME, default_dirpath, earlier_dirpaths
from drivetrain.callbacks.model_checkpoint import ModelCheckpoint
from drivetrain.checkpoint.manifest import read_manifest
from drivetrain.cluster.cluster_info import ClusterInfo
from drivetrain.fabric.downloads import Downloads
from drivetrain.fabric.newest import newest_checkpoint

_num_fits = itertools.count(1)


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

    def find(self, run: Any, downloads: Downloads) -> str | None:
        """The newest checkpoint that verifies; `None` to begin from the start. Rank 0 says which for training.

        Ranks: all.

        Raises:
            CheckpointError: On every rank, if there is none and there has to be one.
        """
        trainer, collectives = run.trainer, run.fabric.collectives
        trains = run.request.stage == "fit"
        keeper = trainer.checkpoint_callback
        found = newest_checkpoint(
            downloads,
            lambda: folders_of_run(trainer),
            first=keeper.last_model_path if keeper is not None else "",
            needs_optimizers=trains,
        )
        if found is None and not self.is_optional:
            raise CheckpointError(
                f"{self.asked}, but no checkpoint of this run is whole.",
                code="checkpoint-missing",
                do="Give the path of a checkpoint, or train with a ModelCheckpoint first.",
            )
        said = f"no whole checkpoint in {folders_of_run(trainer)[0]}, begins from the start"
        if found is not None:
            said = _in_words(found, downloads)
        if trains and collectives.is_global_zero:
            print(f"{self.asked}: {said}.")
        return found


def id_of_fit(cluster: ClusterInfo) -> str:
    """Tells this fit from all others, and is the same in ranks that are started again for it.

    Empty where ranks were not started by drivetrain: other launchers may give several runs the same name.
    """
    number = next(_num_fits)  # a program that is run again fits in the same order
    return f"{cluster.run_id}/{number}" if cluster.launched_by == "drivetrain" else ""


def find_after_restart(run: Any, downloads: Downloads) -> str | None:
    """Where ranks that were started again go on: the newest whole checkpoint of this very fit. Rank 0 says which.

    Ranks: all.

    Returns:
        `None` if they were not started again, or it has saved nothing yet: then as at the first start.
    """
    trainer, cluster = run.trainer, run.fabric.strategy.cluster
    if not (run.fit_id and cluster.restart_count):
        return None
    found = newest_checkpoint(downloads, lambda: folders_of_run(trainer), needs_optimizers=True, fit_id=run.fit_id)
    said = "nothing was saved yet, begins as at the first start"
    if found is not None:
        said = _in_words(found, downloads)
    if run.fabric.is_global_zero:
        print(f"restart {cluster.restart_count} of {cluster.max_restarts}, after {cluster.last_failure}: {said}.")
    return found


def _in_words(found: str, downloads: Downloads) -> str:
    return f"goes on from {found} (step {read_manifest(downloads.directory_of(found)).step})"


def folders_of_run(trainer: Any) -> list[str]:
    """Where checkpoints of a run may be: where its `ModelCheckpoint`s save, or under its `default_root_dir`.

    Where the logger chose the version, its earlier ones count, too: a run that is started again begins with a new one.
    """
    keepers = [one for one in trainer.callbacks if isinstance(one, ModelCheckpoint)]
    if not keepers:
        root = locate(trainer.default_root_dir)
        return [root, join(root, FOLDER_NAME)]
    found = [one.dirpath for one in keepers if one.has_own_dirpath and one.dirpath]
    if len(found) < len(keepers):
        found += [default_dirpath(trainer), *earlier_dirpaths(trainer)]
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
