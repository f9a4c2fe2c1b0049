"""How much of a batch, its number and its loader a user's step takes."""

from __future__ import annotations

import inspect
from typing import Any

from drivetrain.base.errors import ConfigError

_OFFERED = ("batch", "batch_idx", "dataloader_idx")


def is_callable_with(function: Any, num_arguments: int) -> bool:
    """Whether so many positional arguments are enough, and not too many, as the signature says."""
    try:
        inspect.signature(function).bind(*[None] * num_arguments)
    except TypeError:
        return False
    except ValueError:  # not written in Python
        pass
    return True


def num_step_arguments(module: Any, step: str, num_offered: int) -> int:
    """How many of `batch, batch_idx, dataloader_idx` a step takes, as its signature says.

    Args:
        module: The user's.
        step: The method's name.
        num_offered: Those that the loop has: the number of the loader only with several loaders of evaluation.

    Raises:
        ConfigError: It needs more than there is.
    """
    method = getattr(module, step)
    try:
        parameters = list(inspect.signature(method).parameters.values())
    except (TypeError, ValueError):  # not written in Python
        return num_offered
    if any(one.kind is inspect.Parameter.VAR_POSITIONAL for one in parameters):
        return num_offered
    positional = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    most = 2 if step == "training_step" else 3
    needed = [one for one in parameters if one.default is one.empty and one.kind is not one.VAR_KEYWORD]
    if not positional or any(one not in positional[:most] for one in needed):
        raise ConfigError(
            f"{type(module).__name__}.{step}{inspect.signature(method)} cannot be called with "
            f"({', '.join(_OFFERED[:most])}).",
            code="step-signature",
            do=f"Let it take ({', '.join(_OFFERED[:most])}), or the first of them.",
        )
    num_needed = sum(one in positional for one in needed)
    return max(num_needed, min(num_offered, len(positional)))
