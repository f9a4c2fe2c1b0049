"""Names of drivetrain under the ones that people know, found when they are first used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from drivetrain.base import lazy_names
from drivetrain.lightning.absent import ABSENT


def finder(module: str, names: Mapping[str, str], *, parts: tuple[str, ...] = ()) -> Callable[[str], Any]:
    """The `__getattr__` of a module of familiar names; see `drivetrain.base.lazy_names.finder`.

    A familiar name that is not there is an `ImportError` that says what to use instead: of an `AttributeError` Python
    would leave out the text.
    """
    find = lazy_names.finder(module, names, parts=parts, hint="; see docs/protocol.md")

    def find_familiar(name: str) -> Any:
        deeper = sys.modules.get(f"{module}.{name}") if name not in names else None
        if deeper is not None:
            return deeper
        if name in ABSENT and name not in names:
            from drivetrain.base.errors import MissingNameError

            raise MissingNameError(
                f"drivetrain has no {name}.",
                code="missing-name",
                do=f"Use {ABSENT[name]}. All names: docs/protocol.md.",
            )
        return find(name)

    return find_familiar
