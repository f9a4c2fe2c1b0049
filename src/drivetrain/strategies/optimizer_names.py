"""Optimizer state by the names of parameters: torch numbers them in the order in which the optimizer was given them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer

from drivetrain.base.errors import CheckpointError
from drivetrain.strategies.original_names import original_name
from drivetrain.strategies.prepared import Prepared

NAMES_KEY = "parameter_names"


def parameter_names(state: Mapping[str, Any]) -> dict[int, str]:
    """The names of the parameters of all prepared modules, by id."""
    return {
        id(parameter): f"{key}.{original_name(name)}"
        for key, value in state.items()
        if isinstance(value, Prepared)
        for name, parameter in value.original.named_parameters()
    }


def parameters_of(optimizer: Optimizer) -> list[nn.Parameter]:
    """All parameters of an optimizer, in its own order."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def names_of(optimizer: Optimizer, names: Mapping[int, str]) -> list[str] | None:
    """The names of an optimizer's parameters in its own order; `None` unless each has one."""
    found = [names.get(id(parameter)) for parameter in parameters_of(optimizer)]
    return None if None in found else found  # type: ignore[return-value]


def named_state(optimizer: Optimizer, names: Mapping[int, str]) -> dict[str, Any]:
    """torch's state dict, and the names behind its numbers."""
    state = optimizer.state_dict()
    own = names_of(optimizer, names)
    return state if own is None else {**state, NAMES_KEY: own}


def renumbered(saved: Mapping[str, Any], optimizer: Optimizer, names: Mapping[int, str], *, name: str) -> Any:
    """A saved state in the numbers of this optimizer, whatever order its parameters had when it was saved.

    Raises:
        CheckpointError: The parameters are others, or are grouped otherwise.
    """
    old, new = saved.get(NAMES_KEY), names_of(optimizer, names)
    if old is None or new is None:
        return saved
    old = [original_name(one) for one in old]
    numbers = {one: number for number, one in enumerate(new)}
    groups, state = [], {}
    grouped = iter(new)
    for group, own in zip(saved["param_groups"], optimizer.param_groups, strict=False):
        wanted = [next(grouped) for _ in own["params"]]
        found = [old[number] for number in group["params"]]
        if set(found) != set(wanted):
            raise _differs(name, set(found) ^ set(wanted))
        groups.append({**group, "params": [numbers[one] for one in wanted]})
    if len(groups) != max(len(saved["param_groups"]), len(optimizer.param_groups)):
        raise _differs(name, set(old) ^ set(new))
    for number, value in saved["state"].items():
        state[numbers[old[number]]] = value
    return {**saved, "state": state, "param_groups": groups}


def _differs(name: str, names: set[str]) -> CheckpointError:
    shown = ", ".join(sorted(names)) or "the number of parameter groups"
    return CheckpointError(
        f"The saved {name!r} does not fit the optimizer: they differ in {shown}.",
        code="checkpoint-keys",
        do="Make the optimizer's parameter groups as they were when it was saved.",
    )
