"""Who goes on with a run: a small file in the folder of its checkpoints, with a number that only grows.

    <folder>/.claim-<run>       "3 9f0c... process 412 on node7 since 2026-11-30 16:02:11"

It is written by a process that goes on from a checkpoint of that folder and will save into it. Every process that saves
for that run compares it with what it found or wrote when it began, before a checkpoint gets its name. Reading and
renaming are two steps: a process that is stopped between them, for as long as it takes another to go on, still gives
that one checkpoint its name.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
import time
from collections.abc import Callable
from pathlib import Path

from drivetrain.base.files import make_directory, write_text_atomically
from drivetrain.base.locations import is_url, join
from drivetrain.checkpoint.remote import get_text, put_text
from drivetrain.checkpoint.write_errors import writing


def claim(folder: str, run: str, *, goes_on: bool) -> Callable[[], str | None]:
    """Begin to save into a folder.

    Args:
        folder: A directory, or the URL of a store.
        run: The same for a run and for all that go on from its checkpoints; different for all others.
        goes_on: From a checkpoint of that folder, so that all others that do or did so are to save no more.

    Returns:
        A function that says who has taken over since then, `None` if nobody; it reads one small file, which is not
        there where nobody ever went on.

    Raises:
        CheckpointError: The folder cannot be read or written.
    """
    place = join(folder, f".claim-{hashlib.sha256(run.encode()).hexdigest()[:16]}")
    own = _read(place)
    if goes_on:
        number = 1 + int(own.split()[0]) if own else 1
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        own = f"{number} {secrets.token_hex(8)} process {os.getpid()} on {socket.gethostname()} since {since}\n"
        _write(place, own)

    def successor() -> str | None:
        found = _read(place)
        return None if found in ("", own) else found.split(maxsplit=2)[2].rstrip("\n")

    return successor


def _read(place: str) -> str:
    if is_url(place):
        return get_text(place)
    with writing(Path(place)):
        try:
            return Path(place).read_text(encoding="utf-8")
        except FileNotFoundError:
            return ""


def _write(place: str, text: str) -> None:
    if is_url(place):
        put_text(place, text)
        return
    with writing(Path(place)):
        make_directory(Path(place).parent)
        write_text_atomically(Path(place), text)
