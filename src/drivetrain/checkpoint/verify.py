"""Which checkpoints can be trusted: everything in them is read again and compared with the manifest.

What is loaded is compared by the checksum, which costs little beside the loading; `is_thorough` compares the SHA-256.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from drivetrain.base.checksum import checksum_file
from drivetrain.base.errors import CheckpointError
from drivetrain.base.files import hash_file
from drivetrain.base.temporary_names import parse_temporary
from drivetrain.checkpoint.manifest import MANIFEST_NAME, FileRecord, Manifest, compare_listing, read_manifest

_SUFFIXES = (".pt", ".distcp")


def problems(directory: Path, *, share: tuple[int, int] = (0, 1), is_thorough: bool = False) -> list[str]:
    """All that is wrong with a checkpoint, in words; empty if every byte is as it was written.

    Args:
        directory: The checkpoint.
        share: `(index, num_shares)`: of the files, read those of one share alone; the shares are about equally large.
        is_thorough: Compare the SHA-256 of each file instead of its checksum.
    """
    try:
        manifest = read_manifest(directory)
    except CheckpointError as error:
        return [error.what.removesuffix(".")]
    return _content_problems(directory, manifest, share=share, is_thorough=is_thorough)


def require_valid(directory: Path, *, share: tuple[int, int] = (0, 1)) -> Manifest:
    """The manifest of a checkpoint in which every byte is as it was written.

    Args:
        directory: The checkpoint.
        share: As for `problems`.

    Raises:
        CheckpointError: `checkpoint-missing`, `checkpoint-corrupt` or `checkpoint-format`.
    """
    manifest = read_manifest(directory)
    found = _content_problems(directory, manifest, share=share)
    if found:
        raise CheckpointError(
            f"{directory} is damaged: {'; '.join(found)}.",
            code="checkpoint-corrupt",
            do="Nothing of it was used. Resume from an earlier checkpoint.",
        )
    return manifest


def list_checkpoints(root: Path) -> list[Path]:
    """The checkpoints in a directory, oldest first, by step (the number, not the text) and then by time.

    They are not verified: directories that lost their manifest but hold tensor files are in it, too, and those whose
    manifest cannot be read come first. Hidden directories and links are left out.
    """
    found = _listed(root)
    return sorted(found, key=lambda path: age_key(path.name, _manifest_or_none(path)))


def newest_first(root: Path) -> tuple[list[tuple[Path, Manifest]], list[str]]:
    """The checkpoints in a directory whose manifest can be read, newest first; what else is in them is not read.

    One that was moved aside by a `commit` that never ended counts, too.

    Returns:
        The checkpoints, and one line for each that was left out: its name and what is wrong with it.
    """
    skipped: list[str] = []
    readable: list[tuple[Path, Manifest]] = []
    for path in sorted([*_listed(root), *_moved_aside(root)], key=lambda path: _natural_key(path.name)):
        try:
            readable.append((path, read_manifest(path)))
        except CheckpointError as error:
            skipped.append(f"{path.name}: {error.what.removesuffix('.')}")
    return sorted(readable, key=lambda pair: age_key(pair[0].name, pair[1]), reverse=True), skipped


def newest_valid(root: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint in a directory that verifies; older ones than that are not read.

    One that was moved aside by a `commit` that never ended counts, too.

    Returns:
        The checkpoint or `None`, and one line for each that was skipped: its name and what is wrong with it.
    """
    candidates, skipped = newest_first(root)
    for path, _ in candidates:
        found = problems(path)
        if not found:
            return path, skipped
        skipped.append(f"{path.name}: {'; '.join(found)}")
    return None, skipped


def age_key(name: str, manifest: Manifest | None) -> tuple[int, str, bool, list[str | int]]:
    """What checkpoints of a folder are sorted by, the oldest first."""
    step, created = (-1, "") if manifest is None else (manifest.step, manifest.created)
    return step, created, not name.startswith("."), _natural_key(name)


def _content_problems(
    directory: Path, manifest: Manifest, *, share: tuple[int, int] = (0, 1), is_thorough: bool = False
) -> list[str]:
    try:
        found = compare_listing(directory, manifest)
    except OSError as error:
        return [f"{directory} cannot be read: {error.strerror}"]
    for record in _share_of(manifest.files, *share):
        if record.name in found:
            continue
        try:
            if not _is_as_written(directory / record.name, record, is_thorough=is_thorough):
                found[record.name] = "has other content than was written"
        except OSError as error:
            found[record.name] = f"cannot be read: {error.strerror}"
    return [f"{name} {problem}" for name, problem in found.items()]


def _is_as_written(path: Path, record: FileRecord, *, is_thorough: bool) -> bool:
    if is_thorough or not record.checksum:
        return hash_file(path) == record.sha256
    return checksum_file(path) == record.checksum


def _share_of(files: Sequence[FileRecord], index: int, num_shares: int) -> list[FileRecord]:
    """Each file goes to the share that is the smallest so far, the largest first."""
    sizes, own = [0] * num_shares, []
    for record in sorted(files, key=lambda record: (-record.size_bytes, record.name)):
        smallest = sizes.index(min(sizes))
        sizes[smallest] += record.size_bytes + 1
        if smallest == index:
            own.append(record)
    return own


def _listed(root: Path) -> list[Path]:
    return [path for path in _directories(root) if not path.name.startswith(".") and _is_checkpoint_like(path)]


def _moved_aside(root: Path) -> list[Path]:
    names = ((path, parse_temporary(path.name)) for path in _directories(root))
    return [path for path, name in names if name is not None and name.kind == "old"]


def _directories(root: Path) -> list[Path]:
    try:
        with os.scandir(root) as entries:
            return [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        # An empty answer would let a run start from nothing although checkpoints are there.
        raise CheckpointError(
            f"{root} cannot be searched for checkpoints: {error.strerror}.",
            code="checkpoint-missing",
            do="Make the directory readable for this user, or give another one.",
        ) from error


def _is_checkpoint_like(directory: Path) -> bool:
    """A checkpoint that lost its manifest is to be seen and named; a directory of logs is not."""
    try:
        names = os.listdir(directory)
    except OSError:
        return True
    return MANIFEST_NAME in names or any(name.endswith(_SUFFIXES) for name in names)


def _manifest_or_none(directory: Path) -> Manifest | None:
    try:
        return read_manifest(directory)
    except CheckpointError:
        return None


def _natural_key(name: str) -> list[str | int]:
    """Text and numbers in turn, always beginning with text, so that any two can be compared."""
    return [int(part) if index % 2 else part for index, part in enumerate(re.split(r"(\d+)", name))]
