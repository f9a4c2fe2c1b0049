"""The manifest: the list of what belongs to a checkpoint. A directory without a good one is no checkpoint."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

from drivetrain.base.errors import CheckpointError
from drivetrain.base.files import Write, write_plainly, write_text_atomically
from drivetrain.checkpoint.write_errors import writing

MANIFEST_NAME = "drivetrain-manifest.json"
FORMAT_VERSION = 1


@dataclass(frozen=True)
class FileRecord:
    """One file of a checkpoint, as it was meant to be written.

    Attributes:
        name: Its path inside the checkpoint, with `/`.
        size_bytes: Its length.
        sha256: The hash of its content, in hex.
        checksum: That of `base.checksum`, which is read faster; empty where only the hash is known.
    """

    name: str
    size_bytes: int
    sha256: str
    checksum: str = ""


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")


@dataclass(frozen=True)
class Manifest:
    """What belongs to a checkpoint.

    Attributes:
        step: Optimizer steps done when it was taken.
        world_size: Ranks that wrote it.
        files: All files but the manifest itself.
        created: When, ISO 8601 in UTC.
        extra: Anything else that JSON can hold.
        format_version: Of the layout of the directory.
    """

    step: int
    world_size: int
    files: Sequence[FileRecord]
    created: str = field(default_factory=_now)
    extra: Mapping[str, Any] = field(default_factory=dict)
    format_version: int = FORMAT_VERSION

    @property
    def size_bytes(self) -> int:
        """Bytes of all files together."""
        return sum(record.size_bytes for record in self.files)


def write_manifest(directory: Path, manifest: Manifest, *, write: Write = write_plainly) -> None:
    """Write the manifest, the last file of a checkpoint, after a look at what is there.

    Raises:
        CheckpointError: `checkpoint-write` if it cannot be written, or if the directory holds other files, or of
            another length, than the manifest says; `checkpoint-plain-data` if `extra` does not fit into JSON.
    """
    text = manifest_text(manifest)
    with writing(directory / MANIFEST_NAME):
        differences = compare_listing(directory, manifest)
    if differences:
        raise CheckpointError(
            f"{directory} does not hold what was written for step {manifest.step}: {_in_words(differences)}.",
            code="checkpoint-write",
            do="The file system lost something without an error, or not all ranks see the same directory.\n"
            "The checkpoint was not made; earlier ones are intact.",
        )
    with writing(directory / MANIFEST_NAME):
        write_text_atomically(directory / MANIFEST_NAME, text, write=write)


def manifest_text(manifest: Manifest) -> str:
    """What the file holds.

    Raises:
        CheckpointError: `checkpoint-plain-data` if `extra` does not fit into JSON.
    """
    try:
        return _to_text(manifest)
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"The extra data of the manifest at step {manifest.step} is not plain: {error}.",
            code="checkpoint-plain-data",
            do="It may hold numbers, text, None, and lists and dicts (with text as keys) of them.",
        ) from error


def read_manifest(directory: Path) -> Manifest:
    """The manifest of a checkpoint, checked against its own hash. The other files are not looked at.

    Raises:
        CheckpointError: `checkpoint-missing`, `checkpoint-corrupt`, or `checkpoint-format` for a newer layout.
    """
    path = directory / MANIFEST_NAME
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CheckpointError(
            f"{directory} is not a checkpoint: it has no {MANIFEST_NAME}."
            if directory.is_dir()
            else f"There is no checkpoint at {directory}.",
            code="checkpoint-missing",
            do="A checkpoint is a directory that drivetrain wrote; give its path.",
        ) from error
    except OSError as error:
        raise _corrupt(path, str(error)) from error
    return parse_manifest(content, path)


def parse_manifest(content: bytes, path: Path | str) -> Manifest:
    """What a manifest says, checked against its own hash.

    Args:
        content: Of the file.
        path: Where it is, for errors.

    Raises:
        CheckpointError: `checkpoint-corrupt`, or `checkpoint-format` for a newer layout.
    """
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _corrupt(path, str(error)) from error
    return _from_text(path, text)


def compare_listing(directory: Path, manifest: Manifest) -> dict[str, str]:
    """What is wrong, by file: missing, too much, or of another length than the manifest says; contents are not read."""
    there = _listing(directory)
    there.pop(MANIFEST_NAME, None)
    differences: dict[str, str] = {}
    for record in sorted(manifest.files, key=lambda record: record.name):
        size_bytes = there.pop(record.name, None)
        if size_bytes is None:
            differences[record.name] = "is missing"
        elif size_bytes < 0:
            differences[record.name] = "is not a regular file"
        elif size_bytes != record.size_bytes:
            differences[record.name] = f"has {size_bytes} bytes instead of {record.size_bytes}"
    differences.update((name, "is not in the manifest") for name in sorted(there))
    return differences


def _in_words(differences: dict[str, str]) -> str:
    return "; ".join(f"{name} {difference}" for name, difference in differences.items())


def _listing(directory: Path) -> dict[str, int]:
    """Length of each file by its path inside the directory; -1 for links and other things that are not files."""
    sizes: dict[str, int] = {}
    pending = [("", str(directory))]
    while pending:
        prefix, place = pending.pop()
        with os.scandir(place) as entries:
            for entry in entries:
                name = f"{prefix}{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    pending.append((f"{name}/", entry.path))
                elif entry.is_file(follow_symlinks=False):
                    sizes[name] = entry.stat(follow_symlinks=False).st_size
                else:
                    sizes[name] = -1
    return sizes


def _to_text(manifest: Manifest) -> str:
    names = [record.name for record in manifest.files]
    assert len(set(names)) == len(names), f"a file was recorded twice: {sorted(names)}"
    body: dict[str, Any] = {
        "format_version": manifest.format_version,
        "step": manifest.step,
        "world_size": manifest.world_size,
        "created": manifest.created,
        "files": [vars(record) for record in sorted(manifest.files, key=lambda record: record.name)],
        "extra": manifest.extra,
    }
    return _serialise({**body, "sha256": hashlib.sha256(_serialise(body).encode()).hexdigest()})


def _serialise(data: dict[str, Any]) -> str:
    return json.dumps(data, indent=1, ensure_ascii=True) + "\n"


def _from_text(path: Path | str, text: str) -> Manifest:
    try:
        data = json.loads(text)
        version = data["format_version"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _corrupt(path, str(error)) from error
    # The text has to be the one text that says this, so that every changed byte shows.
    body = {key: value for key, value in data.items() if key != "sha256"}
    if data.get("sha256") != hashlib.sha256(_serialise(body).encode()).hexdigest() or _serialise(data) != text:
        raise _corrupt(path, "its content does not match its own hash")
    if version != FORMAT_VERSION:
        raise CheckpointError(
            f"{path} has format version {version}; this drivetrain reads version {FORMAT_VERSION}.",
            code="checkpoint-format",
            do="Read it with the version of drivetrain that wrote it, or a newer one.",
        )
    try:
        files = tuple(FileRecord(**record) for record in data["files"])
        manifest = Manifest(files=files, **{key: value for key, value in body.items() if key != "files"})
    except (TypeError, KeyError) as error:
        raise _corrupt(path, str(error)) from error
    for record in files:
        parts = PurePosixPath(record.name).parts
        if not parts or parts[0] == "/" or ".." in parts:
            raise _corrupt(path, f"{record.name!r} is not a path inside the checkpoint")
    return manifest


def _corrupt(path: Path | str, reason: str) -> CheckpointError:
    return CheckpointError(
        f"{path} is damaged: {reason}.",
        code="checkpoint-corrupt",
        do="What it lists cannot be trusted. Resume from an earlier checkpoint.",
    )
