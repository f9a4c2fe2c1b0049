"""The attribute of a module or data module that a search sets."""

from __future__ import annotations

from typing import Any

from drivetrain.base.errors import ConfigError

RATES = ("lr", "learning_rate")


def attribute_name(owner: Any, name: str, usual: tuple[str, ...] = ()) -> str:
    """The name under which a module, or its hyperparameters, has the attribute.

    Args:
        owner: The module or data module.
        name: As the user gave it; empty for one of the usual ones.
        usual: Names that are looked for.

    Raises:
        ConfigError: It has none.
    """
    names = (name,) if name else usual
    for one in names:
        if hasattr(owner, one) or one in owner.hparams:
            return one
    raise ConfigError(
        f"{type(owner).__name__} has no attribute {' or '.join(names)} to set.",
        code="tuner-attribute",
        do="Name it, or set what was found yourself.",
    )


def set_attribute(owner: Any, name: str, value: float) -> None:
    """Set an attribute that `attribute_name` gave, and the hyperparameter of that name."""
    if hasattr(owner, name):
        setattr(owner, name, value)
    if name in owner.hparams:
        owner.hparams[name] = value
