"""Which checkpoint is loaded, the same on all ranks: one that was named, or the newest that is whole."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

from drivetrain.base.errors import CheckpointError
from drivetrain.base.locations import join
from drivetrain.checkpoint.manifest import MANIFEST_NAME
from drivetrain.checkpoint.remote import checkpoints_in, exists
from drivetrain.checkpoint.verify import problems, require_valid
from drivetrain.fabric.downloads import Downloads
from drivetrain.fabric.together import together


def newest_checkpoint(
    downloads: Downloads,
    find_folders: Callable[[], Sequence[str]],
    *,
    first: str = "",
    needs_optimizers: bool = False,
    fit_id: str = "",
) -> str | None:
    """The newest checkpoint that verifies in any of some folders; a warning of rank 0 names those passed over, and why.

    Ranks: all; each reads a share of the files, and rank 0 chooses what is looked at.

    Args:
        downloads: Those of URLs are downloaded to be verified, the newest first.
        find_folders: Gives directories and URLs; called on rank 0 alone. That which was written to last comes first.
        first: If it is among them, it is looked at first.
        needs_optimizers: Pass over what was saved with the weights alone.
        fit_id: Of a fit, whose own checkpoints alone count; empty for those of any.

    Raises:
        CheckpointError: On every rank, if a folder cannot be searched.
    """
    collectives = downloads.collectives

    def look() -> tuple[list[str], list[str]]:
        found, damaged = _candidates(find_folders(), needs_optimizers=needs_optimizers, fit_id=fit_id)
        return sorted(found, key=lambda location: location != first), damaged

    candidates, skipped = collectives.broadcast(together(collectives, look, only_zero=True))
    chosen = None
    for location in candidates:
        directory = downloads.directory_of(location)
        found = collectives.gather_objects(problems(directory, share=downloads.share_of(location)))
        if not any(found):
            chosen = location
            break
        wrong = dict.fromkeys(line.replace(str(directory), location) for own in found for line in own)
        skipped.append(f"{location}: {'; '.join(wrong)}")
    if skipped and collectives.is_global_zero:
        lines = "".join(f"\n    {line}" for line in skipped)
        warnings.warn(f"{chosen or 'No checkpoint'} is used; passed over:{lines}", stacklevel=3)
    return chosen


def whole_checkpoint(downloads: Downloads, location: str) -> str:
    """The checkpoint at a place, or the newest that is whole of a folder of checkpoints; it was verified.

    Ranks: all; each reads a share of the files, and rank 0 looks whether it is a folder.

    Raises:
        CheckpointError: On every rank, if it is not whole; of a folder, if none is.
    """
    collectives = downloads.collectives
    is_folder = together(collectives, lambda: is_folder_of_checkpoints(location), only_zero=True)
    if not collectives.broadcast(is_folder):
        _verify(downloads, location)
        return location
    found = newest_checkpoint(downloads, lambda: [location])
    if found is None:
        raise CheckpointError(
            f"No checkpoint in {location} is whole.",
            code="checkpoint-corrupt",
            do="The warning of rank 0 says what is wrong with each. Give another folder, or begin anew.",
        )
    return found


def is_folder_of_checkpoints(location: str) -> bool:
    """Checkpoints are in it, and it is none itself."""
    return not exists(join(location, MANIFEST_NAME)) and any(checkpoints_in(location))


def _verify(downloads: Downloads, location: str) -> None:
    directory, error = downloads.directory_of(location), None
    try:
        require_valid(directory, share=downloads.share_of(location))
    except CheckpointError as caught:
        # Of a download the user knows the URL alone.
        error = CheckpointError(caught.what.replace(str(directory), location), code=caught.code, do=caught.do)
    for one in downloads.collectives.gather_objects(error):
        if one is not None:
            raise one


def _candidates(folders: Sequence[str], *, needs_optimizers: bool, fit_id: str) -> tuple[list[str], list[str]]:
    written: list[tuple[str, list[str]]] = []
    skipped: list[str] = []
    for folder in dict.fromkeys(folders):
        found, damaged = checkpoints_in(folder)
        skipped += [f"{folder}/{line}" for line in damaged]
        found = [(place, manifest) for place, manifest in found if fit_id in ("", manifest.extra.get("fit"))]
        kept = [place for place, manifest in found if not (needs_optimizers and manifest.extra.get("weights_only"))]
        skipped += [f"{place}: it holds weights alone" for place, _ in found if place not in kept]
        written.append((max((manifest.created for _, manifest in found), default=""), kept))
    written.sort(key=lambda pair: pair[0], reverse=True)
    return [place for _, places in written for place in places], skipped
