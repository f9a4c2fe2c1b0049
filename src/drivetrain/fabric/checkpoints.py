"""What a raw loop saves and loads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from drivetrain.base.locations import is_url, locate
from drivetrain.fabric.downloads import Downloads
from drivetrain.fabric.fabric_optimizer import without_wrappers
from drivetrain.fabric.gradients import Gradients
from drivetrain.fabric.newest import newest_checkpoint
from drivetrain.fabric.raw_file import load_raw_file
from drivetrain.fabric.save import load_checkpoint
from drivetrain.fabric.saves import SaveHandle, Saves


class Checkpoints(Gradients):
    """Checkpoints, and plain files of other programs.

    Attributes:
        saves: Those that are written beside training.
    """

    saves: Saves

    def save(self, path: str | Path, state: Mapping[str, Any], *, wait: bool = True) -> SaveHandle:
        """Write a checkpoint directory, whole or not at all.

        Ranks: all.

        Args:
            path: The directory to make, or to replace; or a URL such as `s3://bucket/runs/first`.
            state: Name to module, optimizer, anything with `state_dict`, or plain data (numbers, strings, tensors, and
                lists and dicts of them). A number under `"step"` is noted in the manifest.
            wait: Return when it is there. Otherwise the state is copied, and written beside what comes next. One save
                at a time: the next one waits for it, and `close` does.

        Returns:
            To `wait()` for, or to `check()` after each step.

        Raises:
            CheckpointError: On every rank, if any rank cannot write; or if the save before has failed.
        """
        strategy = self._running
        step = state.get("step", 0)
        step = step if isinstance(step, int) else 0
        return self.saves.save(strategy, path, without_wrappers(state), step=step, wait=wait)

    def load(self, path: str | Path, state: Mapping[str, Any] | None = None, *, strict: bool = True) -> dict[str, Any]:
        """Verify a checkpoint and put its state back into what `state` names.

        Ranks: all.

        Args:
            path: What `save` wrote, a directory or a URL; or a folder of such: then the newest that is whole is loaded,
                and rank 0 warns of each one that it passed over.
            state: Name to module, optimizer or stateful object to load into. A mutable mapping gets its plain values
                replaced.
            strict: Missing and unexpected names are an error.

        Returns:
            What the checkpoint holds beyond that.

        Raises:
            CheckpointError: On every rank, if it cannot be read or trusted.
        """
        self.saves.settle()
        rest, _ = load_checkpoint(self._running, path, without_wrappers(state or {}), strict=strict)
        if isinstance(state, dict):
            for name in list(rest):
                if name in state:
                    state[name] = rest.pop(name)
        return rest

    def load_raw(self, path: str | Path, obj: Any, *, strict: bool = True) -> None:
        """Load a plain state dict of one file, of torch or (`.safetensors`) of safetensors.

        Ranks: all; each reads it.

        Args:
            path: The file.
            obj: A module or an optimizer, set up or not.
            strict: Missing and unexpected names of a module are an error.

        Raises:
            CheckpointError: On every rank, if it cannot be read; where it does not fit.
        """
        load_raw_file(self._running, path, without_wrappers({"": obj})[""], strict=strict)

    def latest(self, folder: str | Path) -> str | Path | None:
        """The newest checkpoint of a folder that is whole; rank 0 warns of each one that it passed over.

        Ranks: all; each reads a share of the files to verify them.

        Args:
            folder: A directory or a URL; of a URL each checkpoint is downloaded to be verified.

        Returns:
            A path, or the URL of one that is in a store.

        Raises:
            CheckpointError: On every rank, if the folder cannot be read; one that is not there holds none.
        """
        self.saves.settle()
        with Downloads(self._running) as downloads:
            found = newest_checkpoint(downloads, lambda: [locate(folder)])
        return found if found is None or is_url(found) else Path(found)
