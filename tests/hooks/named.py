"""The hooks that the code has: what can be overridden in a module, a callback and a data module."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from drivetrain import Callback, DataModule, Module
from drivetrain.loop.batch_transfer import BatchTransfer
from drivetrain.loop.evaluation_modes import EvaluationModes
from drivetrain.loop.module_hooks import ModuleHooks
from drivetrain.loop.step_methods import StepMethods

MODULE, CALLBACK, DATA_MODULE = "module", "callback", "data module"


@dataclass(frozen=True)
class Hook:
    """One method that a user may override.

    Attributes:
        owner: Of whom.
        name: Of the method.
        arguments: Those that it gets beside the trainer and the module.
        when: The first lines of its docstring.
    """

    owner: str
    name: str
    arguments: str
    when: str


def hooks_of(owner: str) -> list[Hook]:
    """All of them, in the order of the code."""
    if owner == CALLBACK:
        methods = _methods(Callback)
    elif owner == DATA_MODULE:
        methods = [*_methods(DataModule), *_methods(BatchTransfer)]
    else:
        steps = (one for one in _methods(Module) if re.fullmatch(r"\w+_step|configure_\w+", one[0]))
        methods = [*steps, *(one for cls in (ModuleHooks, BatchTransfer, StepMethods, EvaluationModes)
                             for one in _methods(cls))]  # fmt: skip
    return [Hook(owner, name, _arguments(method), _when(method)) for name, method in methods]


@functools.cache
def all_hooks() -> tuple[Hook, ...]:
    """Of all three."""
    return tuple(hook for owner in (MODULE, CALLBACK, DATA_MODULE) for hook in hooks_of(owner))


def names_of(owner: str) -> list[str]:
    """What can be overridden there."""
    return [hook.name for hook in all_hooks() if hook.owner == owner]


def _methods(cls: type) -> Iterable[tuple[str, Any]]:
    return [(name, one) for name, one in vars(cls).items() if inspect.isfunction(one) and not name.startswith("_")]


def _arguments(method: Any) -> str:
    """As the signature says, or the docstring where the signature takes anything."""
    parameters = list(inspect.signature(method).parameters.values())[1:]
    shown = [
        one.name if one.default is inspect.Parameter.empty else f"{one.name}={one.default}"
        for one in parameters
        if one.name not in ("trainer", "pl_module") and one.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    ]
    if not shown and parameters and parameters[0].kind is inspect.Parameter.VAR_POSITIONAL:
        said = re.search(rf"`{method.__name__}\((.*?)\)`", inspect.getdoc(method) or "")
        return said[1] if said is not None else ""
    return ", ".join(shown)


def _when(method: Any) -> str:
    said = " ".join((inspect.getdoc(method) or "").partition("\n\n")[0].split())
    return said.replace(" All ranks.", "")  # the page has a column for it
