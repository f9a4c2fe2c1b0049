"""Hooks, bound once per run: an event that nobody overrides is an empty tuple."""

from __future__ import annotations

import difflib
import functools
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from drivetrain.base.errors import HookError
from drivetrain.loop.callback import Callback
from drivetrain.loop.module import Module
from drivetrain.loop.module_hooks import ModuleHooks

Hook = Callable[..., Any]

# Of versions of the familiar protocol that are long gone: the name of today.
_FORMER = {
    "training_epoch_end": "on_train_epoch_end",
    "validation_epoch_end": "on_validation_epoch_end",
    "test_epoch_end": "on_test_epoch_end",
    "training_step_end": "on_train_batch_end",
    "validation_step_end": "on_validation_batch_end",
    "configure_sharded_model": "configure_model",
    "on_epoch_start": "on_train_epoch_start",
    "on_epoch_end": "on_train_epoch_end",
    "on_batch_start": "on_train_batch_start",
    "on_batch_end": "on_train_batch_end",
    "on_keyboard_interrupt": "on_exception",
    "on_init_start": "setup",
    "on_init_end": "setup",
    "on_pretrain_routine_start": "on_fit_start",
    "on_pretrain_routine_end": "on_fit_start",
}

# Of progress bars that are drawn by tqdm: nothing calls them but the bar that says so.
_OF_BARS = ("init_train_tqdm", "init_validation_tqdm", "init_test_tqdm", "init_predict_tqdm", "init_sanity_tqdm")

CALLBACK_EVENTS = tuple(name for name in vars(Callback) if name.startswith("on_"))
MODULE_EVENTS = tuple(name for name in vars(ModuleHooks) if name.startswith("on_"))


class Hooks:
    """For each event a tuple of functions that take the event's own arguments alone.

    Callbacks come in the order given, then the module, then callbacks that judge what the others left (`runs_last`:
    checkpoints, early stopping).

    Args:
        trainer: Handed to callbacks.
        module: Its hooks take no trainer.
        callbacks: Their hooks take the trainer and the module first.
    """

    def __init__(self, trainer: Any, module: Any, callbacks: Iterable[Callback]) -> None:
        callbacks = list(callbacks)
        first = [callback for callback in callbacks if not callback.runs_last]
        last = [callback for callback in callbacks if callback.runs_last]
        self._owners: dict[str, list[str]] = {}
        self._running: list[tuple[str, int]] = []  # the hook that runs now; one list for all copies
        for event in (*CALLBACK_EVENTS, "setup", "teardown"):
            bound = [
                *_of_callbacks(event, first, trainer, module),
                *_of_module(event, module),
                *_of_callbacks(event, last, trainer, module),
            ]
            self._owners[event] = [owner for owner, _ in bound]
            setattr(self, event, tuple(hook for _, hook in bound))

    def __getattr__(self, event: str) -> tuple[Hook, ...]:
        raise HookError(f"{event} is not an event.", code="unknown-hook", do="All hooks: docs/hooks.md.")

    def run(self, event: str, *, left: Iterable[str] | None = None) -> None:
        """Call the hooks of an event that takes no arguments, and know which of them runs.

        Args:
            event: E.g. `"on_step_end"`.
            left: What `owners_left` gave in the run from which this one goes on: only these hooks.
        """
        hooks, owners = getattr(self, event), self._owners[event]
        waiting = None if left is None else Counter(left)
        chosen = []
        for index in reversed(range(len(hooks))):  # of two with the same owner the last one is left
            if waiting is None or waiting[owners[index]] > 0:
                chosen.append(index)
            if waiting is not None:
                waiting[owners[index]] -= 1
        for index in reversed(chosen):
            self._running[:] = [(event, index)]
            hooks[index]()
        self._running.clear()

    def owners_left(self, event: str) -> list[str]:
        """Whose hooks follow the one that runs now, if it is one of this event; nobody's if none runs."""
        if not self._running or self._running[0][0] != event:
            return []
        return self._owners[event][self._running[0][1] + 1 :]


def _of_callbacks(event: str, callbacks: Iterable[Callback], trainer: Any, module: Any) -> list[tuple[str, Hook]]:
    default = getattr(Callback, event)
    return [
        (callback.state_key, functools.partial(getattr(callback, event), trainer, module))
        for callback in callbacks
        if getattr(type(callback), event, None) is not default or event in vars(callback)
    ]


def _of_module(event: str, module: Any) -> list[tuple[str, Hook]]:
    default = getattr(ModuleHooks, event, None)
    if default is None or (getattr(type(module), event) is default and event not in vars(module)):
        return []
    return [("", getattr(module, event))]


def check_callback(callback: Any) -> None:
    """Refuse what is not a callback, or defines a hook that does not exist.

    Raises:
        HookError: It names the nearest hook.
    """
    if not isinstance(callback, Callback):
        raise HookError(
            f"callbacks holds a {type(callback).__name__}, which is not a Callback.",
            code="not-a-callback",
            do="Derive it from drivetrain.Callback, and pass an object, not a class.",
        )
    for name in dir(type(callback)):
        if (name.startswith("on_") or name in _FORMER) and name not in CALLBACK_EVENTS:
            raise _unknown(type(callback), name, CALLBACK_EVENTS)
        if name in _OF_BARS and not getattr(callback, "makes_tqdm_bars", False):
            raise HookError(
                f"{type(callback).__name__} defines {name}, which is not a hook: it would never be called.",
                code="unknown-hook",
                do="Derive it from TQDMProgressBar; or override get_metrics to show other values, or open_display.",
            )


def check_module(module: Any) -> None:
    """Refuse what cannot be trained by a trainer, and hooks that are misspelt or long gone.

    Raises:
        HookError: A method looks like a hook and is none.
    """
    if not isinstance(module, Module):
        raise HookError(
            f"The model is a {type(module).__name__}, not a drivetrain.Module.",
            code="not-a-module",
            do="Derive it from drivetrain.Module, or use Fabric for a plain nn.Module.",
        )
    for name in dir(type(module)):
        if name in _FORMER:
            raise _unknown(type(module), name, MODULE_EVENTS)
        is_strange = name.startswith("on_") and not hasattr(Module, name) and callable(getattr(type(module), name))
        if is_strange and difflib.get_close_matches(name, MODULE_EVENTS, n=1, cutoff=0.85):
            raise _unknown(type(module), name, MODULE_EVENTS)


def _unknown(cls: type, name: str, events: tuple[str, ...]) -> HookError:
    near = _FORMER.get(name) or next(iter(difflib.get_close_matches(name, events, n=1, cutoff=0.5)), None)
    return HookError(
        f"{cls.__name__} defines {name}, which is not a hook: it would never be called.",
        code="unknown-hook",
        do=(f"Did you mean {near}? " if near else "") + "All hooks: docs/hooks.md.",
    )
