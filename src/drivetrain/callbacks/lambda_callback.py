"""A callback made of functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from drivetrain.base.errors import HookError
from drivetrain.loop.callback import Callback
from drivetrain.loop.hooks import CALLBACK_EVENTS

_EVENTS = ("setup", "teardown", *CALLBACK_EVENTS)


class LambdaCallback(Callback):
    """`LambdaCallback(on_train_start=lambda trainer, module: print("go"))`.

    Args:
        hooks: Each hook takes what the method of that name takes.

    Raises:
        HookError: A name is not a hook.
    """

    def __init__(self, **hooks: Callable[..., Any]) -> None:
        for name, hook in hooks.items():
            if name not in _EVENTS:
                raise HookError(
                    f"LambdaCallback got {name}, which is not a hook.",
                    code="unknown-hook",
                    do="All hooks: docs/hooks.md.",
                )
            setattr(self, name, hook)
