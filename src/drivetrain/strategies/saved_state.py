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
    return whole_tensors(directory, saved if name is None else part_of(directory, saved, name))


def read_module(directory: Path, *, name: str | None = None) -> dict[str, Any]:
    """Verify a checkpoint, and read the state of one module in it.

    Args:
        directory: The checkpoint.
        name: What the module was saved as; by default the only one that is there, or `"model"`.

    Raises:
        CheckpointError: It cannot be trusted, or holds no module of that name.
    """
    require_valid(directory)
    saved: dict[str, Any] = read_tensors(directory / STATE_FILE)
    if name is None:
        modules = [one for one, value in saved.items() if isinstance(value, Mapping) and "param_groups" not in value]
        modules = [one for one in modules if one != "trainer"]
        name = modules[0] if len(modules) == 1 else "model"
    module = whole_tensors(directory, part_of(directory, saved, name))[name]
    if not isinstance(module, Mapping):
        raise CheckpointError(
            f"{directory} holds {name!r}, but not as the state of a module.",
            code="checkpoint-keys",
            do=f"It holds {', '.join(sorted(saved))}.",
        )
    return dict(module)


def part_of(directory: Path, saved: Mapping[str, Any], name: str) -> dict[str, Any]:
    """One part of a state, under its name.

    Raises:
        CheckpointError: There is none.
    """
    if name not in saved:
        raise CheckpointError(
            f"{directory} holds {', '.join(sorted(saved))}, but no {name!r}.",
            code="checkpoint-keys",
            do="Give one of these names.",
        )
    return {name: saved[name]}


def whole_tensors(directory: Path, saved: dict[str, Any]) -> dict[str, Any]:
    """A state that a file holds, with whole tensors in the place of the names of sharded ones."""
    if any(directory.glob("*.distcp")):
        from drivetrain.strategies.tensor_files import ShardReader  # only here: it takes a while to import

        shards = ShardReader(directory)
        saved = shards.whole(saved)
        shards.read()
    return saved


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
