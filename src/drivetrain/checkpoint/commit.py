"""How a checkpoint comes to be: all of it under a hidden name first, then its own name in one rename.

    temporary = temporary_directory(final)
    records = [write_tensors(temporary / ..., ...), ...]          # by every rank, into the same directory
    write_manifest(temporary, Manifest(step=..., world_size=..., files=records))
    commit(temporary, final)                                      # from here on it is there, also after a power cut
    point_latest(final.parent, final.name)
    discard(...)                                                  # only now, what is no longer kept

If anything fails before `commit` returns: `discard(temporary)`. If the process dies: `remove_stale_temporaries`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from drivetrain.base.errors import CheckpointError
from drivetrain.base.fence import FENCE
from drivetrain.base.files import Write, fsync_directory, make_directory, write_plainly, write_text_atomically
from drivetrain.base.temporary_names import parse_temporary, temporary_sibling
from drivetrain.checkpoint.manifest import MANIFEST_NAME
from drivetrain.checkpoint.write_errors import writing

LATEST_NAME = "latest"


def temporary_directory(final: Path) -> Path:
    """Make the hidden directory in which the checkpoint `final` is written; it is on the same disk, beside it.

    Raises:
        CheckpointError: `checkpoint-occupied` if `final` is something that a checkpoint must not replace,
            `checkpoint-write` if the directory cannot be made.
    """
    with writing(final):
        _require_replaceable(final)
        make_directory(final.parent)
        temporary = temporary_sibling(final)
        temporary.mkdir()
    return temporary


def commit(temporary: Path, final: Path) -> None:
    """Give a complete checkpoint its name. A kill at any moment leaves the old one or the new one, whole.

    A checkpoint that is there already is moved aside, the new one takes its place, then the old one is deleted. Between
    the two renames the old one has a hidden name, under which `newest_valid` finds it and from which
    `remove_stale_temporaries` brings it back.

    Raises:
        CheckpointError: `checkpoint-write` or `checkpoint-occupied`; `final` is as it was, or already the new one
            if only the last flush to the disk failed. `checkpoint-fenced` in a process whose round is over.
    """
    with writing(final):
        _fsync_tree(temporary)
        assert (temporary / MANIFEST_NAME).is_file(), f"{temporary} has no manifest, only {os.listdir(temporary)}"
        _require_replaceable(final)
        FENCE.require_open(final)
        aside = temporary_sibling(final, "old") if (final / MANIFEST_NAME).exists() else None
        if aside is not None:
            os.rename(final, aside)
        try:
            os.rename(temporary, final)
        except BaseException:
            if aside is not None:
                os.rename(aside, final)
            raise
        fsync_directory(final.parent)
    if aside is not None:
        discard(aside)


def point_latest(root: Path, name: str, *, write: Write = write_plainly) -> None:
    """Make the pointer file `latest` name a checkpoint of `root`. To be called after its `commit`.

    Raises:
        CheckpointError: `checkpoint-write`; the pointer is as it was.
    """
    assert (root / name / MANIFEST_NAME).is_file(), f"{name} is not a checkpoint in {root}"
    FENCE.require_open(root / LATEST_NAME)
    with writing(root / LATEST_NAME):
        write_text_atomically(root / LATEST_NAME, f"{name}\n", write=write)


def read_latest(root: Path) -> Path | None:
    """The checkpoint that `latest` names; `None` if nobody pointed yet, or at something that is not there any more."""
    try:
        name = (root / LATEST_NAME).read_text(encoding="utf-8").removesuffix("\n")
    except (OSError, UnicodeDecodeError):
        return None
    if name in ("", "..") or Path(name).name != name or "\0" in name:
        return None
    return root / name if (root / name).is_dir() else None


def discard(directory: Path) -> bool:
    """Delete a checkpoint or a temporary directory; it loses its name at once, so that no part stays under it.

    Returns:
        Whether all of it is gone. Otherwise the rest has a hidden name, or the directory could not even be renamed.
    """
    hidden = parse_temporary(directory.name)
    gone = temporary_sibling(directory if hidden is None else directory.with_name(hidden.final), "gone")
    try:
        os.rename(directory, gone)
    except OSError:
        return not os.path.lexists(directory)
    with contextlib.suppress(OSError):
        fsync_directory(directory.parent)
    if gone.is_dir() and not gone.is_symlink():
        shutil.rmtree(gone, ignore_errors=True)
    else:  # a link or a file that was to take the place of another
        with contextlib.suppress(OSError):
            gone.unlink()
    return not os.path.lexists(gone)


def _require_replaceable(final: Path) -> None:
    if not final.exists() and not final.is_symlink():
        return
    if final.is_dir() and not final.is_symlink() and ((final / MANIFEST_NAME).exists() or not any(final.iterdir())):
        return
    kind = "link" if final.is_symlink() else "directory" if final.is_dir() else "file"
    raise CheckpointError(
        f"{final} is a {kind} that is not a checkpoint; it would be lost if a checkpoint took its name.",
        code="checkpoint-occupied",
        do="Save under another name, or move it away.",
    )


def _fsync_tree(directory: Path) -> None:
    for place in [*(entry for entry in directory.rglob("*") if entry.is_dir()), directory]:
        fsync_directory(place)
