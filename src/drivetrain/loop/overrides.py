"""Methods of a protocol that a user's class has overridden, found once at the start of a run."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from drivetrain.base.errors import ConfigError
from drivetrain.loop.step_arguments import is_callable_with


def overridden(owner: Any, protocol: type, name: str, num_arguments: int) -> Callable[..., Any] | None:
    """The owner's method, if it is not that of the protocol.

    Args:
        owner: The user's object; `None` has overridden nothing.
        protocol: Has the method that does what is usual.
        name: Of the method.
        num_arguments: It will be called with so many.

    Raises:
        ConfigError: It cannot be.
    """
    if owner is None or (getattr(type(owner), name, None) is getattr(protocol, name) and name not in vars(owner)):
        return None
    method: Callable[..., Any] = getattr(owner, name)
    if not is_callable_with(method, num_arguments):
        usual = list(inspect.signature(getattr(protocol, name)).parameters)[1 : num_arguments + 1]
        raise ConfigError(
            f"{type(owner).__name__}.{name}{inspect.signature(method)} cannot be called with ({', '.join(usual)}).",
            code="step-signature",
            do=f"Let it take ({', '.join(usual)}).",
        )
    return method
