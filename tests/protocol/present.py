"""Whether drivetrain has a name: looked up in the classes themselves."""

from __future__ import annotations

import functools
import importlib
import inspect
from typing import Any

import drivetrain
from tests.protocol.names import OWN_NAMES, Group

_HOMES = ("callbacks", "profilers", "cli")


def found(path: str) -> Any:
    """What a path below `drivetrain` leads to; `None` for nothing."""
    value: Any = drivetrain
    for part in path.split("."):
        if not hasattr(value, part) and inspect.ismodule(value):
            try:
                importlib.import_module(f"{value.__name__}.{part}")
            except ImportError:
                return None
        value = getattr(value, part, None)
    return value


def class_named(name: str) -> Any:
    """A public class or function by its familiar name; `None` for none."""
    own = OWN_NAMES.get(name, name)
    places = [own] if "." in own else [own, *(f"{home}.{own}" for home in _HOMES)]
    return next((value for value in map(found, places) if value is not None), None)


def is_there(group: Group, name: str) -> bool:
    """Whether the name can be used as the group says."""
    if group.kind == "class":
        return class_named(name) is not None
    owner = class_named(group.owner) or found(group.owner)
    assert owner is not None, f"{group.owner} is not there"
    if group.kind == "argument":
        parameters = arguments_of(owner)
        return name in parameters or ("init_options" in parameters and name in _of_wandb())
    return hasattr(owner, name) or name in vars(_example(group.owner))


def arguments_of(owner: Any) -> dict[str, inspect.Parameter]:
    """The arguments of a call; of a class that hands others on as `own`, those of the class above it, too."""
    parameters = dict(inspect.signature(owner).parameters)
    if "own" in parameters and inspect.isclass(owner):
        return arguments_of(owner.__mro__[1]) | parameters
    return parameters


def position_of(group: Group, name: str) -> int:
    """Where an argument is when it is given without its name; -1 where it cannot be."""
    parameters = arguments_of(class_named(group.owner) or found(group.owner))
    if name not in parameters or parameters[name].kind is inspect.Parameter.KEYWORD_ONLY:
        return -1
    return list(parameters).index(name) - ("self" in parameters)


@functools.cache
def _of_wandb() -> frozenset[str]:
    """What `WandbLogger` hands on to `wandb.init`."""
    return frozenset(inspect.signature(importlib.import_module("wandb").init).parameters)


@functools.cache
def _example(owner: str) -> Any:
    """An object of a class: what its constructor sets is there too."""
    cls = found(owner)
    if owner == "Trainer":
        return cls(accelerator="cpu", devices=1, logger=False, enable_checkpointing=False, enable_progress_bar=False)
    return cls(accelerator="cpu", devices=1) if owner == "Fabric" else cls()
