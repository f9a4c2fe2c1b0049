"""A state of which parts were changed on their way into a checkpoint, or out of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class EditedState(dict[str, Any]):
    """What a strategy saves or loads, with other values for some of its parts.

    Args:
        state: Name to prepared module, optimizer, stateful object, or plain data.
        edited: By the same names: what is saved in the place of a part's own state, or loaded in the place of what the
            file has.
        is_whole: `edited` has all that the file has, which was read already.
    """

    def __init__(self, state: Mapping[str, Any], edited: Mapping[str, Any], *, is_whole: bool = False) -> None:
        super().__init__(state)
        self.edited = edited
        self.is_whole = is_whole


def edits_of(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """The parts of a state that have another value."""
    return state.edited if isinstance(state, EditedState) else {}


def was_read(state: Mapping[str, Any]) -> bool:
    """The file from which a state is loaded does not have to be read again."""
    return isinstance(state, EditedState) and state.is_whole
