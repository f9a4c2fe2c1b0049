"""What a checkpoint of any strategy holds, as whole tensors: in one process, without a process group."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from drivetrain.base.errors import CheckpointError
from drivetrain.checkpoint.read import read_tensors
from drivetrain.checkpoint.verify import require_valid
from drivetrain.strategies.optimizer_names import NAMES_KEY
from drivetrain.strategies.replicated_state import STATE_FILE


def read_whole(directory: Path, *, name: str | None = None) -> dict[str, Any]:
    """Verify a checkpoint, and read its state or the part of one name.

    Raises:
        CheckpointError: It cannot be trusted, or nothing was saved under that name.
    """
    require_valid(directory)
    saved: dict[str, Any] = read_tensors(directory / STATE_FILE)
    if name is not None:
        if name not in saved:
            raise CheckpointError(
                f"{directory} holds {', '.join(sorted(saved))}, but no {name!r}.",
                code="checkpoint-keys",
                do="Give one of these names.",
            )
        saved = {name: saved[name]}
    if any(directory.glob("*.distcp")):
        from drivetrain.strategies.tensor_files import ShardReader  # only here: it takes a while to import

        shards = ShardReader(directory)
        saved = shards.whole(saved)
        shards.read()
    return saved


def read_module(directory: Path, *, name: str | None = None) -> dict[str, Any]:
    """Verify a checkpoint, and read the state of one module in it.

    Args:
        directory: The checkpoint.
        name: What the module was saved as; by default `"model"`, or the only one that is there.

    Raises:
        CheckpointError: It cannot be trusted, or it is not clear which module is meant.
    """
    if name is None:
        saved = read_tensors(directory / STATE_FILE) if (directory / STATE_FILE).exists() else {}
        modules = [one for one, value in saved.items() if isinstance(value, Mapping) and "param_groups" not in value]
        modules = [one for one in modules if one != "trainer"]
        name = "model" if len(modules) != 1 else modules[0]
    module: dict[str, Any] = read_whole(directory, name=name)[name]
    return module


def named_tensors(saved: Any, path: str = "") -> dict[str, Tensor]:
    """Each tensor of a nested state by its path; in an optimizer's, by the names of its parameters."""
    if isinstance(saved, Tensor):
        return {path: saved}
    parts: Any = ()
    if isinstance(saved, Mapping):
        names = saved.get(NAMES_KEY)
        if names is not None and isinstance(saved.get("state"), Mapping):
            saved = {**saved, "state": {names[number]: own for number, own in saved["state"].items()}}
        parts = saved.items()
    elif isinstance(saved, (list, tuple)):
        parts = enumerate(saved)
    found: dict[str, Tensor] = {}
    for key, value in parts:
        found.update(named_tensors(value, f"{path}.{key}" if path else str(key)))
    return found
