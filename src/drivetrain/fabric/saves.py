"""The saves of a run: one at a time, in the way of training or beside it.

    a save beside training: wait for the one before -> copy the state (training waits for this alone)
    -> a thread writes, and agrees with those of the other ranks over a group of their own, while training goes on

A save that fails there is an error on every rank after the same step: those that know of it first wait at the end of
their step until all have said how far they are.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from drivetrain.base.errors import CheckpointError
from drivetrain.base.files import Write, write_plainly
from drivetrain.base.locations import locate
from drivetrain.checkpoint.staging import Staging
from drivetrain.checkpoint.state_files import StagedFiles
from drivetrain.comm.collectives import Collectives
from drivetrain.fabric.save import add_share, write_checkpoint
from drivetrain.fabric.together import together
from drivetrain.strategies.process_group import DEFAULT_TIMEOUT_S, make_side_collectives
from drivetrain.strategies.strategy import Strategy

_log = logging.getLogger("drivetrain.fabric")
_NICENESS = 10  # a tenth of the time of a thread beside it


class SaveHandle:
    """A save that was asked for; it may still be written.

    Attributes:
        path: Of the checkpoint.
        step: Optimizer steps done when it was taken.
        patience_s: Waiting for longer is said.
        has_told: Its error was raised somewhere.
    """

    def __init__(self, path: str, step: int, *, patience_s: float = 5.0) -> None:
        self.path = path
        self.step = step
        self.patience_s = patience_s
        self.has_told = False
        self._changed = threading.Condition()
        self._is_done = self._is_failing = False
        self._error: CheckpointError | None = None
        self._num_boundaries = 0
        self._raise_at: int | None = None
        self._actions: list[Callable[[], None]] | None = []

    @property
    def is_done(self) -> bool:
        """It is there, or has failed. Ranks may know that at different steps."""
        return self._is_done

    @property
    def has_failed(self) -> bool:
        """It is done, and there is no checkpoint."""
        return self._is_done and self._error is not None

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it is done.

        Ranks: all at the same step, for an error that ends the run; any otherwise.

        Returns:
            False if the time was over before.

        Raises:
            CheckpointError: It could not be written.
        """
        with self._changed:
            is_done = self._changed.wait_for(lambda: self._is_done, timeout_s)
        if self.has_failed:
            self._raise()
        return is_done

    def wait_turn(self) -> None:
        """Wait, before the next save; if it takes long, say so.

        Ranks: all.

        Raises:
            CheckpointError: It could not be written.
        """
        if not self.wait(self.patience_s):
            warnings.warn(
                "Training waits for a checkpoint that is still being written: checkpoints are asked for faster than "
                "they can be written. Save less often, or to a faster disk.",
                stacklevel=4,
            )
            self.wait()

    def wait_quietly(self) -> bool:
        """Wait, after an error that ends the run; its own is in the log.

        Ranks: any.

        Returns:
            Whether it is there.
        """
        with contextlib.suppress(CheckpointError):
            if not self.wait(self.patience_s):
                _log.warning("Waiting for the checkpoint %s, which is being written.", self.path)
                self.wait()
        return not self.has_failed

    def check(self) -> None:
        """Raise the error of a failed save, at the same call on every rank. It does not wait for a save to be done.

        Ranks: all, after each optimizer step.

        Raises:
            CheckpointError: It could not be written.
        """
        with self._changed:
            number = self._num_boundaries + 1
            self._changed.wait_for(lambda: not self._is_failing or self._raise_at is not None)
            if self._raise_at is None or number < self._raise_at:
                self._num_boundaries = number
                return
        self.wait()

    def when_saved(self, action: Callable[[], None]) -> None:
        """Run something once the checkpoint is there on all ranks, before the save is done; not if it fails.

        It runs in the thread that writes, or here if that is over.
        """
        with self._changed:
            if self._actions is not None:
                self._actions.append(action)
                return
        if self._error is None:
            action()

    def run(self, write: Callable[[], None], agree: Callable[[int], int]) -> None:
        """Write, then let those who wait go on.

        Args:
            write: Makes the checkpoint, together with the other ranks.
            agree: The greatest of a number over ranks.
        """
        try:
            write()
        except BaseException as error:
            self._fail(error, agree)
        with self._changed:
            actions, self._actions = self._actions or [], None
        if self._error is None:
            for action in actions:
                try:
                    action()
                except Exception:
                    _log.exception("%s was saved; what had to be done after that failed.", self.path)
        with self._changed:
            self._is_done = True
            self._changed.notify_all()

    def _fail(self, error: BaseException, agree: Callable[[int], int]) -> None:
        self._error = error if isinstance(error, CheckpointError) else _as_checkpoint_error(self, error)
        _log.error("The checkpoint of step %d was not saved: %s", self.step, self._error)
        with self._changed:
            self._is_failing = True  # from here on no boundary is passed before it is known where to raise
            furthest = self._num_boundaries
        # Ranks that are gone cannot say how far they are: this one does not wait for them.
        with contextlib.suppress(Exception):
            furthest = agree(furthest)
        with self._changed:
            self._raise_at = furthest + 1
            self._changed.notify_all()

    def _raise(self) -> None:
        self.has_told = True
        assert self._error is not None
        raise self._error


class Saves:
    """The saves of a run, of which one at most is being written.

    Attributes:
        write: Writes bytes to the open file: a test hands in one that fails or waits.
        patience_s: A save that waits longer for the one before says so, once.
        staging: The memory into which states are copied.
    """

    def __init__(self) -> None:
        self.write: Write = write_plainly
        self.patience_s = 5.0
        self.staging = Staging()
        self._pending: SaveHandle | None = None
        self._side: Collectives | None = None
        self._stack = ExitStack()

    def __reduce__(self) -> Any:
        return Saves, ()  # what was being written stays in its process

    def save(
        self,
        strategy: Strategy,
        path: str | Path,
        state: Mapping[str, Any],
        *,
        step: int = 0,
        of_rank: Any = None,
        extra: Mapping[str, Any] | None = None,
        wait: bool = True,
    ) -> SaveHandle:
        """Write a checkpoint, whole or not at all.

        Ranks: all.

        Args:
            strategy: Knows how its state is split over ranks.
            path: The directory or URL to make; one that is there is replaced once the new one is complete.
            state: Name to prepared module, optimizer, stateful object, or plain data.
            step: Optimizer steps done; kept in the manifest.
            of_rank: Plain data of this rank alone, such as its random state.
            extra: What else the manifest says of it; JSON.
            wait: Return when it is there. Otherwise the state is copied, and written beside what comes next.

        Raises:
            CheckpointError: On every rank, naming the rank that failed first; or the one before has failed.
        """
        self.settle()
        collectives, about = strategy.collectives, {"strategy": strategy.traits.name, **(extra or {})}
        handle = SaveHandle(locate(path), step, patience_s=self.patience_s)
        if wait:
            write_checkpoint(
                collectives, handle.path, lambda files: add_share(strategy, files, state, of_rank),
                step=step, extra=about, write=self.write,
            )  # fmt: skip
            handle.run(lambda: None, lambda number: number)
            return handle
        if self._side is None:
            self._side = make_side_collectives(collectives, self._stack, timeout_s=DEFAULT_TIMEOUT_S)
        side, staged, write = self._side, StagedFiles(self.staging), self.write
        together(collectives, lambda: add_share(strategy, staged, state, of_rank))
        staged.finish()

        def write_staged() -> None:
            _stand_back()
            write_checkpoint(side, handle.path, staged.write_to, step=step, extra=about, write=write)

        def furthest(number: int) -> int:
            return int(max(side.gather_objects(number)))

        # No daemon: a process that ends waits for it.
        thread = threading.Thread(target=handle.run, args=(write_staged, furthest), name="drivetrain-save")
        self._pending = handle
        thread.start()
        return handle

    def settle(self) -> None:
        """Wait for a save that is being written.

        Ranks: all.

        Raises:
            CheckpointError: It has failed, and nobody was told yet.
        """
        handle = self._pending
        if handle is None:
            return
        try:
            handle.wait_quietly() if handle.has_told else handle.wait_turn()
        finally:
            if handle.is_done:
                self._pending = None

    def end(self) -> None:
        """Wait for a save that is being written, after an error that ends the run: its own is logged, not raised.

        Ranks: any.
        """
        if self._pending is not None:
            self._pending.wait_quietly()
            self._pending = None

    def close(self) -> None:
        """Leave the run; before its process groups are destroyed.

        Ranks: all.
        """
        self.end()
        self._side = None
        stack, self._stack = self._stack, ExitStack()
        stack.close()


def _stand_back() -> None:
    """Let training go first where cores are few: this thread takes what time is left. Linux has that for a thread."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


def _as_checkpoint_error(handle: SaveHandle, error: BaseException) -> CheckpointError:
    made = CheckpointError(
        f"{handle.path} could not be written: {type(error).__name__}: {error}.",
        code="checkpoint-write",
        do="The checkpoint was not made; earlier ones are intact.",
    )
    made.__cause__ = error
    return made
