"""`configure_optimizers` from a configuration."""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Mapping
from typing import Any

from drivetrain.base.errors import ConfigError
from drivetrain.loop.module import Module


def use_configured(module: Module, optimizer: Any, lr_scheduler: Any) -> None:
    """Let a module return an optimizer of this class, if one was asked for, and a scheduler of it.

    Args:
        module: Its `configure_optimizers` is replaced on this object.
        optimizer: `class_path` and `init_args`, or `None`.
        lr_scheduler: Likewise.
    """
    if optimizer is None:
        if lr_scheduler is not None:
            warnings.warn("lr_scheduler was given without an optimizer: configure_optimizers decides.", stacklevel=2)
        return
    if type(module).configure_optimizers is not Module.configure_optimizers:
        warnings.warn(
            f"{type(module).__name__}.configure_optimizers is not called: the configuration has an optimizer.",
            stacklevel=2,
        )
    module.configure_optimizers = functools.partial(  # type: ignore[method-assign]
        make_optimizers, module, _plain(optimizer), None if lr_scheduler is None else _plain(lr_scheduler)
    )


def make_optimizers(module: Module, optimizer: Mapping[str, Any], lr_scheduler: Mapping[str, Any] | None) -> Any:
    """What `configure_optimizers` returns."""
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    made = make_object(optimizer, trained)
    if lr_scheduler is None:
        return made
    return {"optimizer": made, "lr_scheduler": {"scheduler": make_object(lr_scheduler, made)}}


def make_object(spec: Mapping[str, Any], *args: Any) -> Any:
    """An object of the class that `class_path` names, with `init_args`.

    Raises:
        ConfigError: There is no such class.
    """
    module, _, name = spec["class_path"].rpartition(".")
    try:
        made = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"{spec['class_path']} is not a class: {error}.", code="command-line", do="Give the path as it is imported."
        ) from error
    return made(*args, **spec.get("init_args", {}))


def _plain(spec: Any) -> dict[str, Any]:
    return spec.as_dict() if hasattr(spec, "as_dict") else dict(spec)
