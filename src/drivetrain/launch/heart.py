"""A thread in each rank that says how far it is: which collectives it has begun, and that it moves.

It only reads: numbers that torch keeps for each process group anyway, and `Pulse`. A step pays nothing for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from drivetrain.base.fence import FENCE
from drivetrain.base.pulse import PULSE
from drivetrain.cluster.cluster_info import ClusterInfo
from drivetrain.launch.patience import DEFAULT_PATIENCE, Patience
from drivetrain.launch.stall import JOINING, MESSAGES
from drivetrain.launch.worker import ERROR_FILE

ROUND_NAME = "round"
"""A file beside the ranks' folders, as long as their round is not over."""

HEART_NAME = "heart.json"
BEAT_S = 0.5
_BLOCK_BYTES = 4096
_PROMPTS = {"pdb.py", "bdb.py", "cmd.py", "code.py"}


class Heart:
    """Reports how far this process is, every half second, to whoever watches it.

    Args:
        tell: Gets the report: `{"counts": ..., "pulse": ..., "is_held": ..., "patience": ...}`. Called from a thread of
            its own; where it raises `OSError` the report is lost.
        beat_s: Between two reports.
    """

    def __init__(self, tell: Callable[[dict[str, Any]], None], *, beat_s: float = BEAT_S) -> None:
        self._tell = tell
        self._beat_s = beat_s
        self._num_joins = 0
        self._patience = DEFAULT_PATIENCE
        self._main = threading.main_thread().ident
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="drivetrain-heart", daemon=True)

    def join(self, patience: Patience) -> None:
        """Note that this rank is about to meet the others, and begin to report.

        Args:
            patience: Of the run; whoever watches may have been started by somebody else.
        """
        self._patience = patience
        self._num_joins += 1
        if not self._thread.is_alive():
            self._beat()
            self._thread.start()

    def report(self) -> dict[str, Any]:
        """How far this process is."""
        counts = {JOINING: self._num_joins, MESSAGES: PULSE.posts} | num_collectives()
        patience = list(vars(self._patience).values())
        return {"counts": counts, "pulse": PULSE.count, "is_held": self._is_debugged(), "patience": patience}

    def stop(self) -> None:
        """Report no more."""
        self._is_over.set()
        if self._thread.is_alive():
            self._thread.join(timeout=self._beat_s)

    def _run(self) -> None:
        while not self._is_over.wait(self._beat_s):
            self._beat()

    def _beat(self) -> None:
        with contextlib.suppress(OSError):
            self._tell(self.report())

    def _is_debugged(self) -> bool:
        """The main thread is in the prompt of a debugger, or of a console.

        Only the innermost frame is looked at: the frames of a thread that runs must not be followed from another one
        (a crash of Python 3.11).
        """
        frame = sys._current_frames().get(self._main or 0)
        return frame is not None and os.path.basename(frame.f_code.co_filename) in _PROMPTS


def num_collectives() -> dict[str, int]:
    """How many collectives this process has begun in each process group, by the group's name.

    The count of torch 2.13, for gloo and NCCL. It does not talk to anybody.
    """
    c10d: Any = sys.modules.get("torch.distributed.distributed_c10d")
    counts = {}
    for group, name in list(c10d._world.pg_names.items()) if c10d is not None else ():
        try:
            counts[str(name)] = group._get_sequence_number_for_group()
        except (RuntimeError, AttributeError, TypeError):  # a backend that does not count; or not a member
            continue
    return counts  # and no group is held: whoever drops the last reference to one waits for its threads


def file_teller(path: Path) -> Callable[[dict[str, Any]], None]:
    """Reports into a file of fixed size, in place: a full disk does not stop them."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    os.pwrite(descriptor, b" " * _BLOCK_BYTES, 0)
    told: list[bytes] = [b""]

    def tell(report: dict[str, Any]) -> None:
        text = json.dumps(report).encode()
        if text != told[0]:
            os.pwrite(descriptor, text.ljust(_BLOCK_BYTES), 0)
            told[0] = text

    return tell


def read_report(path: Path) -> dict[str, Any] | None:
    """What a rank last reported; `None` if nothing, or if it is just being written."""
    try:
        report = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return report if isinstance(report, dict) else None


_heart: list[Heart] = []  # of this process, once it is a rank that somebody watches


def begin_heart(cluster: ClusterInfo, patience: Patience) -> None:
    """Report how far this rank is, if the launcher watches it; called each time before the ranks meet.

    Ranks: any.

    Args:
        cluster: This rank among the others.
        patience: How long ranks may show nothing.
    """
    if cluster.launched_by != "drivetrain":
        return
    if not _heart:
        directory = Path(os.environ[ERROR_FILE]).parent
        _heart.append(Heart(file_teller(directory / HEART_NAME)))
        FENCE.follow((directory.parent / ROUND_NAME).exists)
    _heart[0].join(patience)
