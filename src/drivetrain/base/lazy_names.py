"""Names of a package that are imported when they are first used."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def finder(
    module: str, names: Mapping[str, str], *, parts: tuple[str, ...] = (), hint: str = ""
) -> Callable[[str], Any]:
    """The `__getattr__` of a module.

    Args:
        module: Its name, for the error.
        names: Name to where it is: `"drivetrain.loop.module:Module"`; of the same name there without a colon.
        parts: Modules below it, which are imported when they are first used.
        hint: Ends the error for a name that is not there.
    """

    def find(name: str) -> Any:
        if name in parts:
            return importlib.import_module(f"{module}.{name}")
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}{hint}")
        home, _, own = names[name].partition(":")
        return getattr(importlib.import_module(home), own or name)

    return find
