"""A model as one file that other programs read."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from drivetrain.base.errors import CheckpointError, ConfigError
from drivetrain.base.files import fsync_directory, fsync_file
from drivetrain.base.optional import import_extra
from drivetrain.base.temporary_names import temporary_sibling
from drivetrain.checkpoint.write import write_tensors
from drivetrain.checkpoint.write_errors import writing

SUFFIXES = (".safetensors", ".pt")


def export_model(state: Mapping[str, Any], path: Path) -> None:
    """Write a module's state, as its `state_dict` names it, to one file: whole or not at all.

    Args:
        state: Name to tensor. A `.safetensors` file holds nothing else; a tensor under two names is in it twice.
        path: A file that is not there yet, ending in `.safetensors` or `.pt`.

    Raises:
        ConfigError: `export-format`, for another ending, or for a state that does not fit into safetensors.
        MissingExtraError: safetensors is not installed.
        CheckpointError: `checkpoint-occupied` or `checkpoint-write`.
    """
    if path.suffix not in SUFFIXES:
        raise ConfigError(
            f"{path.name} ends in {path.suffix!r}.", code="export-format", do=f"Known are {' and '.join(SUFFIXES)}."
        )
    if path.exists():
        raise CheckpointError(
            f"{path} is there already.", code="checkpoint-occupied", do="Give another name, or move it away."
        )
    temporary = temporary_sibling(path)
    try:
        if path.suffix == ".pt":
            write_tensors(temporary, dict(state))
        else:
            _write_safetensors(state, temporary)
        with writing(path):
            os.replace(temporary, path)
            fsync_directory(path.parent)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def _write_safetensors(state: Mapping[str, Any], path: Path) -> None:
    safetensors: Any = import_extra("safetensors.torch", extra="safetensors", purpose="An export to safetensors")
    odd = [name for name, value in state.items() if not isinstance(value, Tensor)]
    if odd:
        raise ConfigError(
            f"A safetensors file holds tensors only; {', '.join(odd)} is something else.",
            code="export-format",
            do="Export to a .pt file.",
        )
    seen: set[int] = set()
    tensors = {}
    for name, value in state.items():
        storage = value.untyped_storage().data_ptr()
        tensors[name] = value.detach().clone() if storage in seen else value.detach().contiguous()
        seen.add(storage)
    with writing(path):
        safetensors.save_file(tensors, str(path), metadata={"format": "pt"})
        fsync_file(path)
