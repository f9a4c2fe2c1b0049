"""Which checkpoint is loaded, the same on all ranks: one that was named, or the newest that is whole."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

from drivetrain.base.errors import CheckpointError
from drivetrain.checkpoint.manifest import MANIFEST_NAME, read_manifest
from drivetrain.checkpoint.verify import newest_first, problems, require_valid
from drivetrain.comm.collectives import Collectives
from drivetrain.fabric.together import together


def newest_checkpoint(
    collectives: Collectives,
    find_folders: Callable[[], Sequence[Path]],
    *,
    first: Path | None = None,
    needs_optimizers: bool = False,
) -> Path | None:
    """The newest checkpoint that verifies in any of some folders; a warning of rank 0 names those passed over, and why.

    Ranks: all; each reads a share of the files, and rank 0 chooses what is looked at.

    Args:
        collectives: Of the run.
        find_folders: Called on rank 0 alone. The folder that was written to last comes first.
        first: If it is among them, it is looked at first.
        needs_optimizers: Pass over what was saved with the weights alone.

    Raises:
        CheckpointError: On every rank, if a folder cannot be searched.
    """

    def look() -> tuple[list[Path], list[str]]:
        found, damaged = _candidates(find_folders(), needs_optimizers=needs_optimizers)
        return sorted(found, key=lambda path: path != first), damaged

    candidates, skipped = collectives.broadcast(together(collectives, look, only_zero=True))
    chosen = None
    for path in candidates:
        found = collectives.gather_objects(problems(path, share=(collectives.rank, collectives.world_size)))
        if not any(found):
            chosen = path
            break
        skipped.append(f"{path}: {'; '.join(dict.fromkeys(line for own in found for line in own))}")
    if skipped and collectives.is_global_zero:
        lines = "".join(f"\n    {line}" for line in skipped)
        warnings.warn(f"{chosen or 'No checkpoint'} is used; passed over:{lines}", stacklevel=3)
    return chosen


def verify_together(collectives: Collectives, directory: Path) -> None:
    """Verify a checkpoint, each rank a share of its files.

    Ranks: all (one gather of small objects).

    Raises:
        CheckpointError: The same on every rank.
    """
    error = None
    try:
        require_valid(directory, share=(collectives.rank, collectives.world_size))
    except CheckpointError as caught:
        error = caught
    for one in collectives.gather_objects(error):
        if one is not None:
            raise one


def is_folder_of_checkpoints(path: Path) -> bool:
    """Checkpoints are in it, and it is none itself."""
    return path.is_dir() and not (path / MANIFEST_NAME).exists() and any(newest_first(path))


def require_newest(collectives: Collectives, folder: Path) -> Path:
    """The newest checkpoint of a folder that verifies.

    Ranks: all, as `newest_checkpoint`.

    Raises:
        CheckpointError: On every rank, if none does.
    """
    found = newest_checkpoint(collectives, lambda: [folder])
    if found is None:
        raise CheckpointError(
            f"No checkpoint in {folder} is whole.",
            code="checkpoint-corrupt",
            do="The warning of rank 0 says what is wrong with each. Give another folder, or begin anew.",
        )
    return found


def _candidates(folders: Sequence[Path], *, needs_optimizers: bool) -> tuple[list[Path], list[str]]:
    written: list[tuple[str, list[Path]]] = []
    skipped: list[str] = []
    for folder in dict.fromkeys(folders):
        paths, damaged = newest_first(folder)
        skipped += [f"{folder}/{line}" for line in damaged]
        manifests = [(path, read_manifest(path)) for path in paths]
        kept = [path for path, manifest in manifests if not (needs_optimizers and manifest.extra.get("weights_only"))]
        skipped += [f"{path}: it holds weights alone" for path in paths if path not in kept]
        written.append((max((manifest.created for _, manifest in manifests), default=""), kept))
    written.sort(key=lambda pair: pair[0], reverse=True)
    return [path for _, paths in written for path in paths], skipped
