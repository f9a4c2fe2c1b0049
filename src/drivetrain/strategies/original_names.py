"""Names of parameters as the user's module calls them, also where `torch.compile` has put a wrapper into it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

WRAPPER = "_orig_mod."  # of `torch.compile(module)`, in front of the names of what it wraps


def original_name(name: str) -> str:
    """A name without what torch's wrapper adds to it."""
    return name.replace(WRAPPER, "") if WRAPPER in name else name


def renamed_for(saved: Mapping[str, Any], own: Iterable[str]) -> dict[str, Any]:
    """Saved values under the names that they have now, whether or not parts were compiled then, or are now.

    Args:
        saved: By the names of then.
        own: The names of now.
    """
    now = {original_name(name): name for name in own}
    return {now.get(original_name(name), name): value for name, value in saved.items()}
