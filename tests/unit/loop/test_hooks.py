"""Hooks: bound once, in order, and only where somebody overrides them."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from drivetrain import Callback, HookError, Module
from drivetrain.loop.hooks import (
    CALLBACK_EVENTS,
    MODULE_EVENTS,
    Hooks,
    check_callback,
    check_module,
)
from drivetrain.loop.module_hooks import ModuleHooks


class Named(Callback):
    def __init__(self, name: str, heard: list[Any]) -> None:
        self.name, self.heard = name, heard

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.heard.append((self.name, trainer, type(pl_module).__name__, batch, batch_idx))


class Last(Named):
    runs_last = True


class Loud(Module):
    def __init__(self, heard: list[Any]) -> None:
        super().__init__()
        self.heard = heard

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.heard.append(("module", batch, batch_idx))


def test_an_event_nobody_overrides_is_an_empty_tuple() -> None:
    """A bare step would call forty functions that do nothing."""
    hooks = Hooks("trainer", Module(), [Callback(), Callback()])
    assert {getattr(hooks, event) for event in (*CALLBACK_EVENTS, "setup", "teardown")} == {()}


def test_callbacks_come_first_then_the_module_then_those_that_judge() -> None:
    """A checkpoint would be judged before the module logged its value."""
    heard: list[Any] = []
    module = Loud(heard)
    hooks = Hooks("trainer", module, [Last("last", heard), Named("a", heard), Named("b", heard)])
    for hook in hooks.on_train_batch_start:
        hook("batch", 3)
    assert heard == [
        ("a", "trainer", "Loud", "batch", 3),
        ("b", "trainer", "Loud", "batch", 3),
        ("module", "batch", 3),
        ("last", "trainer", "Loud", "batch", 3),
    ]
    assert hooks.on_train_batch_end == ()


def test_a_hook_set_on_one_object_is_called() -> None:
    """`callback.on_fit_start = function` would be ignored."""
    heard: list[str] = []
    callback, module = Callback(), Module()
    callback.on_fit_start = lambda trainer, pl_module: heard.append("callback")  # type: ignore[method-assign]
    module.on_fit_start = lambda: heard.append("module")  # type: ignore[method-assign]
    for hook in Hooks("trainer", module, [callback]).on_fit_start:
        hook()
    assert heard == ["callback", "module"]


def test_a_hook_of_a_parent_class_is_called() -> None:
    """A subclass of a user's callback would lose its hooks."""

    class Child(Named):
        pass

    assert len(Hooks("trainer", Module(), [Child("x", [])]).on_train_batch_start) == 1


def test_an_event_that_does_not_exist_is_an_error() -> None:
    """A loop that asks for a misspelt event would call nothing."""
    with pytest.raises(HookError, match="on_train_batch_ends is not an event") as caught:
        Hooks("trainer", Module(), []).on_train_batch_ends  # noqa: B018
    assert caught.value.code == "unknown-hook"


def test_module_and_callback_hooks_take_the_same_arguments() -> None:
    """A hook could not be moved from a callback to the module."""
    for event in MODULE_EVENTS:
        ours = list(inspect.signature(getattr(ModuleHooks, event)).parameters)[1:]
        theirs = list(inspect.signature(getattr(Callback, event)).parameters)[3:]
        assert ours == theirs, event
    assert set(MODULE_EVENTS) < set(CALLBACK_EVENTS)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("on_train_batch_finish", "on_train_batch_end"),
        ("on_validation_epoch_ends", "on_validation_epoch_end"),
        ("on_epoch_end", "on_train_epoch_end"),
        ("on_batch_start", "on_train_batch_start"),
        ("on_keyboard_interrupt", "on_exception"),
        ("on_xyz", "docs/hooks.md"),
        ("init_train_tqdm", "get_metrics"),
    ],
)
def test_a_callback_with_a_strange_hook_is_told_the_nearest(name: str, near: str) -> None:
    """It would never be called, and nobody would know."""
    kind = type("Mine", (Callback,), {name: lambda self, *args: None})
    with pytest.raises(HookError, match=f"Mine defines {name}, which is not a hook") as caught:
        check_callback(kind())
    assert caught.value.code == "unknown-hook" and near in str(caught.value)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("on_train_epoch_ends", "on_train_epoch_end"),
        ("on_validation_start_", "on_validation_start"),
        ("training_epoch_end", "on_train_epoch_end"),
        ("validation_epoch_end", "on_validation_epoch_end"),
        ("training_step_end", "on_train_batch_end"),
        ("configure_sharded_model", "configure_model"),
    ],
)
def test_a_module_with_a_misspelt_or_former_hook_is_told_todays(name: str, near: str) -> None:
    """Metrics of each epoch would be missing after the import was changed."""
    kind = type("Mine", (Module,), {name: lambda self, *args: None})
    with pytest.raises(HookError, match=f"Mine defines {name}") as caught:
        check_module(kind())
    assert caught.value.code == "unknown-hook" and f"Did you mean {near}?" in str(caught.value)


def test_a_module_may_have_methods_that_begin_with_on() -> None:
    """A model with an `on_policy_loss` could not be trained."""
    check_module(type("Mine", (Module,), {"on_policy_loss": lambda self: None})())


@pytest.mark.parametrize("callback", [3, Callback, "early"])
def test_what_is_no_callback_is_refused(callback: Any) -> None:
    """A class instead of an object would fail at the first hook."""
    with pytest.raises(HookError, match="which is not a Callback") as caught:
        check_callback(callback)
    assert caught.value.code == "not-a-callback"
