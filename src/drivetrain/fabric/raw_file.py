"""A state that another program wrote to one file, put into a module or an optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from drivetrain.base.errors import CheckpointError, ConfigError
from drivetrain.base.locations import is_url, locate
from drivetrain.base.optional import import_extra
from drivetrain.checkpoint.read import read_tensors
from drivetrain.fabric.together import together
from drivetrain.strategies.optimizer_names import parameters_of
from drivetrain.strategies.prepared import Prepared
from drivetrain.strategies.replicated_state import load_module
from drivetrain.strategies.strategy import Strategy


def load_raw_file(strategy: Strategy, path: str | Path, target: Any, *, strict: bool) -> None:
    """Load a state dict from a file of torch, or of safetensors; no code from it is run.

    Ranks: all; each reads the file. If one cannot, none changes anything.

    Args:
        strategy: Of the run.
        path: Ends in `.safetensors` for that format.
        target: A prepared module, a module, or an optimizer.
        strict: Missing and unexpected names of a module are an error.

    Raises:
        CheckpointError: The file cannot be read, is a checkpoint of drivetrain, or does not fit.
        ConfigError: The target has no state to load.
    """
    own = target.original if isinstance(target, Prepared) else target
    if not isinstance(own, nn.Module | Optimizer):
        raise ConfigError(
            f"load_raw got a {type(own).__name__} to load into.",
            code="load-raw",
            do="Give it a module or an optimizer.",
        )
    state = together(strategy.collectives, lambda: _read(path))
    if strategy.traits.shards_state:
        state = _in_shards(state, target, own)
    if isinstance(own, Optimizer):
        own.load_state_dict(state)
    else:
        load_module(own, state, strict=strict, name=str(path))


def _read(path: str | Path) -> dict[str, Any]:
    location = locate(path)
    if is_url(location) or Path(path).is_dir():
        kind = "a URL" if is_url(location) else "a directory"
        raise CheckpointError(
            f"load_raw got {kind}, {path}.",
            code="load-raw",
            do="Give the path of a file. A checkpoint of drivetrain is loaded by fabric.load, or by trainer.fit.",
        )
    if Path(path).suffix == ".safetensors":
        safetensors = import_extra("safetensors.torch", extra="safetensors", purpose="load_raw of a safetensors file")
        try:
            state = safetensors.load_file(str(path))
        except Exception as error:
            raise CheckpointError(
                f"{path} cannot be read as safetensors: {error}", code="load-raw", do="Give another file."
            ) from error
    else:
        state = read_tensors(Path(path))
    if not isinstance(state, Mapping):
        raise CheckpointError(
            f"{path} holds a {type(state).__name__}, not a state dict.",
            code="load-raw",
            do="Save module.state_dict() or optimizer.state_dict().",
        )
    return dict(state)


def _in_shards(state: dict[str, Any], target: Any, own: Any) -> dict[str, Any]:
    """Of each whole tensor this rank's share, where what it belongs to is sharded."""
    from drivetrain.strategies.sharded_state import in_shards, reshard  # only here: it takes a while to import

    if isinstance(own, Optimizer):
        parameters = dict(enumerate(parameters_of(own)))
        state["state"] = {
            number: {key: in_shards(value, parameters.get(number)) for key, value in one.items()}
            for number, one in state["state"].items()
        }
        return state
    reshard({"module": target})
    sharded = own.state_dict()
    return {name: in_shards(value, sharded.get(name)) if isinstance(value, Tensor) else value
            for name, value in state.items()}  # fmt: skip
