"""Saving and loading over ranks: the commit protocol of a checkpoint directory.

    one private temporary directory -> every rank writes its share and syncs it -> file records are gathered
    -> rank 0 writes the manifest, renames the directory, syncs the parent -> all ranks agree that it is there

A failure on any rank is an error on every rank, and what was at `path` before stays as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from drivetrain.base.errors import CheckpointError
from drivetrain.checkpoint.commit import commit, discard, point_latest, temporary_directory
from drivetrain.checkpoint.manifest import FileRecord, Manifest, write_manifest
from drivetrain.checkpoint.read import read_tensors
from drivetrain.checkpoint.stale import remove_stale_temporaries
from drivetrain.checkpoint.verify import require_valid
from drivetrain.checkpoint.write import write_tensors
from drivetrain.comm.collectives import Collectives
from drivetrain.strategies.strategy import Strategy


def save_checkpoint(
    strategy: Strategy, path: str | Path, state: Mapping[str, Any], *, step: int = 0, of_rank: Any = None
) -> None:
    """Write a checkpoint directory, whole or not at all.

    Ranks: all.

    Args:
        strategy: Knows how its state is split over ranks.
        path: The directory to make; one that is there is replaced once the new one is complete.
        state: Name to prepared module, optimizer, stateful object, or plain data.
        step: Optimizer steps done; kept in the manifest.
        of_rank: Plain data of this rank alone, such as its random state.

    Raises:
        CheckpointError: On every rank, naming the rank that failed first.
    """
    collectives, final = strategy.collectives, Path(path).absolute()

    def begin() -> str:
        remove_stale_temporaries(final.parent)
        return str(temporary_directory(final))

    temporary = Path(collectives.broadcast(_together(collectives, begin, only_zero=True)))

    def write() -> list[FileRecord]:
        records = strategy.save_state(state, temporary)
        if of_rank is not None:
            records.append(write_tensors(temporary / _rank_file(collectives.rank), of_rank))
        return records

    def finish() -> None:
        files = [record for share in shares for record in share]
        extra = {"strategy": strategy.traits.name}
        write_manifest(temporary, Manifest(step, collectives.world_size, files, extra=extra))
        commit(temporary, final)
        point_latest(final.parent, final.name)

    try:
        shares = collectives.gather_objects(_together(collectives, write))
        _together(collectives, finish, only_zero=True)
    except BaseException:
        if collectives.is_global_zero:
            discard(temporary)
        raise


def load_checkpoint(
    strategy: Strategy, path: str | Path, state: Mapping[str, Any], *, strict: bool = True
) -> tuple[dict[str, Any], Any]:
    """Verify a checkpoint directory and put its state back.

    Ranks: all.

    Args:
        strategy: Knows how its state is split over ranks.
        path: A directory that `save_checkpoint` wrote.
        state: As it was saved.
        strict: Missing and unexpected names are an error.

    Returns:
        The plain data of the checkpoint, and this rank's own data (`None` if there is none).

    Raises:
        CheckpointError: On every rank, if it cannot be read or trusted.
    """
    collectives, directory = strategy.collectives, Path(path).absolute()

    def read() -> tuple[dict[str, Any], Any]:
        rest = strategy.load_state(state, directory, strict=strict)
        own = directory / _rank_file(collectives.rank)
        return rest, read_tensors(own) if own.exists() else None

    _together(collectives, lambda: require_valid(directory), only_zero=True)
    result: tuple[dict[str, Any], Any] = _together(collectives, read)
    return result


def _rank_file(rank: int) -> str:
    return f"rank_{rank}.pt"


def _together(collectives: Collectives, action: Callable[[], Any], *, only_zero: bool = False) -> Any:
    """Run an action; if it fails on any rank, fail on all with the first failure."""
    error: Exception | None = None
    result = None
    if collectives.is_global_zero or not only_zero:
        try:
            result = action()
        except Exception as caught:
            error = caught
    if collectives.world_size == 1:
        if error is not None:
            raise error
        return result
    told = collectives.gather_objects(None if error is None else f"{type(error).__name__}: {error}")
    failed = [(rank, text) for rank, text in enumerate(told) if text is not None]
    if not failed:
        return result
    if error is not None:
        raise error
    rank, text = failed[0]
    raise CheckpointError(
        f"Rank {rank} failed: {text}",
        code="checkpoint-other-rank",
        do="Nothing was replaced; see that rank's error.",
        rank=(collectives.rank, collectives.world_size),
    )
