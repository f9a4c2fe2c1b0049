"""What is in a run's folder: for people who look, and for programs that ask."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from drivetrain.base.errors import CheckpointError
from drivetrain.checkpoint.commit import read_latest
from drivetrain.checkpoint.manifest import MANIFEST_NAME, Manifest, compare_listing, read_manifest
from drivetrain.checkpoint.verify import list_checkpoints, problems

_MAX_DEPTH = 4  # root/logs/version_0/checkpoints


@dataclass(frozen=True)
class Summary:
    """A checkpoint, as its manifest describes it; `None` where it does not say.

    Attributes:
        path: The directory.
        is_latest: The newest of its folder.
        problems: What is wrong with it; empty if it is whole.
        step: Optimizer steps done.
        epoch: Epochs done; `None` if no Trainer wrote it.
        size_bytes: Of all files together.
        num_ranks: That wrote it.
        format: `"shards"`, or `"one file"` that holds the whole state.
        strategy: That wrote it.
        monitored: Name to value of what it was ranked by.
        created: ISO 8601.
        has_weights_alone: Training cannot go on from it.
    """

    path: Path
    is_latest: bool
    problems: list[str]
    step: int | None = None
    epoch: int | None = None
    size_bytes: int | None = None
    num_ranks: int | None = None
    format: str | None = None
    strategy: str | None = None
    monitored: dict[str, float] = field(default_factory=dict)
    created: str | None = None
    has_weights_alone: bool = False

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {**vars(self), "path": str(self.path)}


def find_checkpoints(root: Path) -> list[Path]:
    """The checkpoint itself, or those in a folder and in the folders below it, oldest first in each.

    Raises:
        CheckpointError: There is nothing at `root`, or no checkpoint in it.
    """
    if (root / MANIFEST_NAME).exists():
        return [root]
    found = [path for folder in _folders(root) for path in list_checkpoints(folder)]
    if not found:
        raise CheckpointError(
            f"There is no checkpoint in {root}.",
            code="checkpoint-missing",
            do="Give a checkpoint, the folder that holds them, or the folder of a run.",
        )
    return found


def summarise(path: Path, *, is_read: bool = True) -> Summary:
    """What a checkpoint is.

    Args:
        path: The directory.
        is_read: Read every file, to see whether it is whole; otherwise only names and sizes are compared.
    """
    try:
        manifest: Manifest | None = read_manifest(path)
    except CheckpointError:
        manifest = None
    if is_read or manifest is None:
        found = problems(path)
    else:
        found = [f"{name} {difference}" for name, difference in compare_listing(path, manifest).items()]
    summary = Summary(path, path == read_latest(path.parent), found)
    if manifest is None:
        return summary
    is_sharded = any(record.name.endswith(".distcp") for record in manifest.files)
    return replace(
        summary,
        step=manifest.step,
        epoch=manifest.extra.get("epoch"),
        size_bytes=manifest.size_bytes,
        num_ranks=manifest.world_size,
        format="shards" if is_sharded else "one file",
        strategy=manifest.extra.get("strategy"),
        monitored=dict(manifest.extra.get("monitored", {})),
        created=manifest.created,
        has_weights_alone=bool(manifest.extra.get("weights_only")),
    )


def _folders(root: Path, depth: int = 0) -> Iterator[Path]:
    """A folder and those below it that are not checkpoints; hidden ones and links are left out."""
    yield root
    if depth == _MAX_DEPTH or not root.is_dir():
        return
    with os.scandir(root) as entries:
        names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    for name in names:
        if not name.startswith(".") and not (root / name / MANIFEST_NAME).exists():
            yield from _folders(root / name, depth + 1)
