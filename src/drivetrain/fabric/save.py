"""Saving and loading over ranks: the commit protocol of a checkpoint directory.

    one private temporary directory -> every rank writes its share and syncs it -> file records are gathered
    -> rank 0 writes the manifest, renames the directory, syncs the parent -> all ranks agree that it is there

A failure on any rank is an error on every rank, and what was at `path` before stays as it was.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from drivetrain.base.files import Write, write_plainly
from drivetrain.base.locations import locate
from drivetrain.checkpoint.manifest import FileRecord, Manifest
from drivetrain.checkpoint.read import read_tensors
from drivetrain.checkpoint.remote import destination_of
from drivetrain.checkpoint.state_files import Place, StateFiles, WrittenFiles
from drivetrain.comm.collectives import Collectives
from drivetrain.fabric.downloads import Downloads
from drivetrain.fabric.newest import whole_checkpoint
from drivetrain.fabric.together import Failure, together
from drivetrain.strategies.strategy import Strategy

_log = logging.getLogger("drivetrain.fabric")
_PAUSES_S = (0.2, 1.0)


def add_share(strategy: Strategy, files: StateFiles, state: Mapping[str, Any], of_rank: Any) -> None:
    """Give this rank's share of a state, and what it has of its own, to files that are written now or later.

    Ranks: all.
    """
    strategy.save_state(state, files)
    if of_rank is not None:
        files.add(_rank_file(strategy.collectives.rank), of_rank)


def write_checkpoint(
    collectives: Collectives,
    location: str,
    fill: Callable[[StateFiles], None],
    *,
    step: int,
    extra: Mapping[str, Any],
    write: Write = write_plainly,
) -> None:
    """Write a checkpoint, whole or not at all. After an error that may pass it is tried again, up to two times.

    Ranks: all.

    Args:
        collectives: Over which the ranks that write agree.
        location: The directory or URL to make; one that is there is replaced once the new one is complete.
        fill: Gives the files of this rank.
        step: Optimizer steps done; kept in the manifest.
        extra: What else it says of the checkpoint; JSON.
        write: Writes bytes to an open file.

    Raises:
        CheckpointError: On every rank, naming the rank that failed first.
    """
    for pause_s in (*_PAUSES_S, None):
        failure = Failure()
        try:
            _write_once(collectives, location, fill, failure, step=step, extra=extra, write=write)
            return
        except Exception as error:
            if pause_s is None or not failure.may_pass:
                raise
            _log.warning("Saving is tried again in %g s: %s", pause_s, error)
        time.sleep(pause_s)


def _write_once(
    collectives: Collectives, location: str, fill: Callable[[StateFiles], None], failure: Failure, *,
    step: int, extra: Mapping[str, Any], write: Write,
) -> None:  # fmt: skip
    destination = destination_of(location)
    token: str = collectives.broadcast(together(collectives, destination.begin, only_zero=True, failure=failure))

    def write_share() -> list[FileRecord]:
        with destination.opened(token) as directory:
            files = WrittenFiles(Place(directory, collectives, write))
            fill(files)
            destination.send(token, directory, files.records)
        return files.records

    def finish() -> None:
        records = [record for share in shares for record in share]
        manifest = Manifest(step, collectives.world_size, records, extra=extra)
        destination.finish(token, manifest, write=write)

    try:
        shares = collectives.gather_objects(together(collectives, write_share, failure=failure))
        together(collectives, finish, only_zero=True, failure=failure)
    except BaseException:
        if collectives.is_global_zero:
            destination.abandon(token)
        raise


def load_checkpoint(
    strategy: Strategy, path: str | Path, state: Mapping[str, Any], *, strict: bool = True
) -> tuple[dict[str, Any], Any]:
    """Verify a checkpoint and put its state back.

    Ranks: all; each reads a share of the files to verify them.

    Args:
        strategy: Knows how its state is split over ranks.
        path: A directory or URL that `write_checkpoint` wrote, or a folder of such: then the newest that is whole.
        state: As it was saved.
        strict: Missing and unexpected names are an error.

    Returns:
        The plain data of the checkpoint, and this rank's own data (`None` if there is none).

    Raises:
        CheckpointError: On every rank, if it cannot be read or trusted.
    """
    with Downloads(strategy) as downloads:
        location = whole_checkpoint(downloads, locate(path))
        return read_checkpoint(strategy, downloads.directory_of(location), state, strict=strict)


def read_checkpoint(
    strategy: Strategy, directory: Path, state: Mapping[str, Any], *, strict: bool = True
) -> tuple[dict[str, Any], Any]:
    """Put the state of a checkpoint back that was verified; arguments, result and errors are those of loading.

    Ranks: all.
    """
    collectives = strategy.collectives

    def read() -> tuple[dict[str, Any], Any]:
        rest = strategy.load_state(state, directory, strict=strict)
        own = directory / _rank_file(collectives.rank)
        return rest, read_tensors(own) if own.exists() else None

    result: tuple[dict[str, Any], Any] = together(collectives, read)
    return result


def _rank_file(rank: int) -> str:
    return f"rank_{rank}.pt"
