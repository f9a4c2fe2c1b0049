"""What killed processes left behind: found by name, finished or removed."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from drivetrain.base.files import fsync_directory
from drivetrain.base.temporary_names import TemporaryName, parse_temporary
from drivetrain.checkpoint.commit import discard
from drivetrain.checkpoint.verify import problems


def remove_stale_temporaries(root: Path, *, idle_s: float = 3600.0) -> list[str]:
    """Remove what dead writers left half done in `root`, and bring back checkpoints that they had moved aside.

    To be called by one process before a run's first save; a root that is not there is fine. What a living process of
    this host is writing stays. Never raises: what cannot be removed is named in the result.

    Args:
        root: The directory that holds the checkpoints.
        idle_s: Leftovers of other hosts and earlier boots, of which nobody here can say whether their writer lives, are
            removed once nothing in them has changed for so long. 0 removes them at once: for a run that knows that it
            is the only one on this directory.

    Returns:
        One line for each thing that was done or could not be done.
    """
    try:
        names = sorted(os.listdir(root))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        return [f"Could not look for leftovers in {root}: {error.strerror}."]
    done = []
    for text in names:
        name = parse_temporary(text)
        if name is not None and _is_stale(root / text, name, idle_s):
            done.append(_settle(root / text, name))
    return done


def _is_stale(path: Path, name: TemporaryName, idle_s: float) -> bool:
    alive = name.is_writer_alive()
    if alive is not None:
        return not alive
    return time.time() - _last_change(path) >= idle_s


def _last_change(path: Path) -> float:
    """When a file or anything in a directory last changed; a rename counts, too."""
    times = [0.0]
    for place in [str(path), *(os.path.join(top, name) for top, _, names in os.walk(path) for name in names)]:
        try:
            status = os.lstat(place)
        except OSError:
            continue
        times.append(max(status.st_mtime, status.st_ctime))
    return max(times)


def _settle(path: Path, name: TemporaryName) -> str:
    final = path.with_name(name.final)
    try:
        if path.is_symlink() or not path.is_dir():
            path.unlink(missing_ok=True)
            return f"Removed {path.name}, an unfinished file."
        if name.kind == "old" and not final.exists():
            os.rename(path, final)
            fsync_directory(path.parent)
            return f"Brought back {name.final}: it had been moved aside for a checkpoint that was never finished."
        if name.kind == "old" and (found := problems(final)):
            return f"Kept {path.name}, because {name.final}, which replaced it, is damaged: {'; '.join(found)}."
    except OSError as error:
        return f"Could not clean up {path.name}: {error.strerror}."
    # What is called gone may be half deleted; it needs no further name.
    if name.kind == "gone":
        shutil.rmtree(path, ignore_errors=True)
        removed = not path.exists()
    else:
        removed = discard(path)
    return f"Removed {path.name}, left by a dead process." if removed else f"Could not remove all of {path.name}."
