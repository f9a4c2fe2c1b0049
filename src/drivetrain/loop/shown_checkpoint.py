"""A checkpoint as `on_save_checkpoint` and `on_load_checkpoint` see it: one dict with the keys that scripts know.

    "state_dict"        the module's state by name, "optimizer_states" that of each optimizer in a list,
    "hyper_parameters", "callbacks", "lr_schedulers", "epoch", "global_step", and what hooks have added

What hooks leave in `state_dict` is what is saved, or loaded. Names that they left out of a file are noted in it.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from drivetrain.base.errors import CheckpointError
from drivetrain.checkpoint.read import read_tensors
from drivetrain.strategies.original_names import renamed_for
from drivetrain.strategies.replicated_state import STATE_FILE
from drivetrain.strategies.saved_tensor import unread

MODEL, STATE_DICT, OPTIMIZERS, LEFT_OUT = "model", "state_dict", "optimizer_states", "left_out_by_hooks"


def read_unverified(directory: Path) -> dict[str, Any]:
    """The state in a checkpoint; tensors are read when they are used.

    Raises:
        CheckpointError: It cannot be read.
    """
    saved: dict[str, Any] = read_tensors(directory / STATE_FILE)
    if any(directory.glob("*.distcp")):
        from drivetrain.strategies.tensor_files import ShardReader  # only here: it takes a while to import

        saved = ShardReader(directory).lazy(saved)
    return saved


def optimizers_in(state: Mapping[str, Any]) -> Iterator[str]:
    """The names of a state's optimizers, in their order."""
    names = (f"optimizer_{number}" for number in itertools.count())
    return itertools.takewhile(lambda name: name in state, names)


def shown(state: Mapping[str, Any], plain: dict[str, Any]) -> dict[str, Any]:
    """What hooks see; the dict is theirs, what it holds is not copied.

    Args:
        state: The states of module and optimizers.
        plain: Everything else.
    """
    checkpoint = {**plain, STATE_DICT: state[MODEL]}
    optimizers = [state[name] for name in optimizers_in(state)]
    if optimizers:
        checkpoint[OPTIMIZERS] = optimizers
    return checkpoint


def take_model(checkpoint: dict[str, Any], hook: str) -> dict[str, Any]:
    """Take the module's state out of what hooks have left.

    Raises:
        CheckpointError: It is not there.
    """
    model = checkpoint.pop(STATE_DICT, None)
    if not isinstance(model, Mapping):
        raise CheckpointError(
            f"{hook} left {'no' if model is None else f'a {type(model).__name__} as'} checkpoint['state_dict'].",
            code="checkpoint-hook",
            do="Leave a dict of name to tensor in it, which may be empty; delete names from it instead of all of it.\n"
            "To save something else in the place of a checkpoint, write a file of your own in on_step_end.",
        )
    return unread(model) if hook == "on_load_checkpoint" else dict(model)


def take_optimizers(checkpoint: dict[str, Any], names: Iterable[str], hook: str) -> dict[str, Any]:
    """Take the optimizers' states out of what hooks have left; none if they left none of them.

    Raises:
        CheckpointError: They are not as many as there were.
    """
    names, states = list(names), list(checkpoint.pop(OPTIMIZERS, None) or ())
    if states and len(states) != len(names):
        raise CheckpointError(
            f"{hook} left {len(states)} of {len(names)} in checkpoint['optimizer_states'].",
            code="checkpoint-hook",
            do="Leave all of them, or none.",
        )
    return dict(zip(names, unread(states), strict=False))


def completed(
    saved: Mapping[str, Any], module: nn.Module, left_out: Iterable[str], *, name: str, strict: bool = True,
    is_said: bool = True,
) -> dict[str, Any]:  # fmt: skip
    """A saved state with the module's own values for the names that were left out of the file.

    Args:
        saved: By the names of then.
        module: As it was built.
        left_out: The names that the file may lack.
        name: What the user knows the checkpoint by.
        strict: False: it may lack any name, and what the module does not have is dropped; nothing is said.
        is_said: Warn of what it lacks.
    """
    own = module.state_dict()
    found, may_lack = renamed_for(saved, own), renamed_for(dict.fromkeys(left_out), own)
    if not strict:
        may_lack, found = own, {key: value for key, value in found.items() if key in own}
    kept = {key: own[key] for key in own if key in may_lack and key not in found}
    if kept and strict and is_said:
        shown_names = f"{', '.join(list(kept)[:3])}{', ...' if len(kept) > 3 else ''}"
        warnings.warn(
            f"{name} has no values for {len(kept)} of {len(own)} names: {shown_names}. They keep those with which the "
            "module was built.",
            stacklevel=2,
        )
    return {**found, **kept}
