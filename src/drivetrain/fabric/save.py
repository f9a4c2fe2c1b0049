"""Saving and loading over ranks: the commit protocol of a checkpoint directory.

    one private temporary directory -> every rank writes its share and syncs it -> file records are gathered
    -> rank 0 writes the manifest, renames the directory, syncs the parent -> all ranks agree that it is there

A failure on any rank is an error on every rank, and what was at `path` before stays as it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from drivetrain.checkpoint.commit import commit, discard, point_latest, temporary_directory
from drivetrain.checkpoint.manifest import FileRecord, Manifest, write_manifest
from drivetrain.checkpoint.read import read_tensors
from drivetrain.checkpoint.stale import remove_stale_temporaries
from drivetrain.checkpoint.write import write_tensors
from drivetrain.fabric.newest import is_folder_of_checkpoints, require_newest, verify_together
from drivetrain.fabric.together import together
from drivetrain.strategies.strategy import Strategy


def save_checkpoint(
    strategy: Strategy,
    path: str | Path,
    state: Mapping[str, Any],
    *,
    step: int = 0,
    of_rank: Any = None,
    extra: Mapping[str, Any] | None = None,
) -> None:
    """Write a checkpoint directory, whole or not at all.

    Ranks: all.

    Args:
        strategy: Knows how its state is split over ranks.
        path: The directory to make; one that is there is replaced once the new one is complete.
        state: Name to prepared module, optimizer, stateful object, or plain data.
        step: Optimizer steps done; kept in the manifest.
        of_rank: Plain data of this rank alone, such as its random state.
        extra: What else the manifest says of it; JSON.

    Raises:
        CheckpointError: On every rank, naming the rank that failed first.
    """
    collectives, final = strategy.collectives, Path(path).absolute()

    def begin() -> str:
        remove_stale_temporaries(final.parent)
        return str(temporary_directory(final))

    temporary = Path(collectives.broadcast(together(collectives, begin, only_zero=True)))

    def write() -> list[FileRecord]:
        records = strategy.save_state(state, temporary)
        if of_rank is not None:
            records.append(write_tensors(temporary / _rank_file(collectives.rank), of_rank))
        return records

    def finish() -> None:
        files = [record for share in shares for record in share]
        about = {"strategy": strategy.traits.name, **(extra or {})}
        write_manifest(temporary, Manifest(step, collectives.world_size, files, extra=about))
        commit(temporary, final)
        point_latest(final.parent, final.name)

    try:
        shares = collectives.gather_objects(together(collectives, write))
        together(collectives, finish, only_zero=True)
    except BaseException:
        if collectives.is_global_zero:
            discard(temporary)
        raise


def load_checkpoint(
    strategy: Strategy, path: str | Path, state: Mapping[str, Any], *, strict: bool = True, is_verified: bool = False
) -> tuple[dict[str, Any], Any]:
    """Verify a checkpoint directory and put its state back.

    Ranks: all; each reads a share of the files to verify them.

    Args:
        strategy: Knows how its state is split over ranks.
        path: A directory that `save_checkpoint` wrote, or a folder of such: then the newest that is whole.
        state: As it was saved.
        strict: Missing and unexpected names are an error.
        is_verified: All ranks have just verified it together.

    Returns:
        The plain data of the checkpoint, and this rank's own data (`None` if there is none).

    Raises:
        CheckpointError: On every rank, if it cannot be read or trusted.
    """
    collectives, directory = strategy.collectives, Path(path).absolute()
    if not is_verified:
        is_folder = together(collectives, lambda: is_folder_of_checkpoints(directory), only_zero=True)
        if collectives.broadcast(is_folder):
            directory = require_newest(collectives, directory)
        else:
            verify_together(collectives, directory)

    def read() -> tuple[dict[str, Any], Any]:
        rest = strategy.load_state(state, directory, strict=strict)
        own = directory / _rank_file(collectives.rank)
        return rest, read_tensors(own) if own.exists() else None

    result: tuple[dict[str, Any], Any] = together(collectives, read)
    return result


def _rank_file(rank: int) -> str:
    return f"rank_{rank}.pt"
