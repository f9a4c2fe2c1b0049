"""What a checkpoint may hold: tensors and plain data, so that reading one runs no code that is named in it."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from drivetrain.base.errors import CheckpointError

# Compared by exact type: a numpy.float64 or an IntEnum is a float or int to isinstance, but not to the pickle.
_LEAVES = frozenset(
    {type(None), bool, int, float, complex, str, bytes, bytearray}
    | {torch.Size, torch.dtype, torch.device, torch.layout, torch.qscheme}
)
_MAPPINGS = frozenset({dict, OrderedDict, Counter})
_SEQUENCES = frozenset({list, tuple, set})
_TENSORS = frozenset({Tensor, Parameter})
# torch's restricted unpickler (2.13) knows integers of up to 255 bytes.
_INT_BITS = 255 * 8 - 1


def require_plain(value: Any, *, name: str = "state") -> None:
    """Refuse what could be saved but not be loaded again with `weights_only=True`.

    Args:
        value: Any nesting of dicts, lists, tuples and sets.
        name: How the error calls the outermost value.

    Raises:
        CheckpointError: `checkpoint-plain-data`, with the key path of the first thing that is not plain.
    """
    _require(value, name, set())


def _require(value: Any, path: str, above: set[int]) -> None:
    kind = type(value)
    if kind in _LEAVES:
        if kind is int and value.bit_length() > _INT_BITS:
            raise _refusal(path, f"an int of {value.bit_length()} bits; {_INT_BITS} is the most")
        return
    if kind in _TENSORS:
        if value.is_meta:
            raise _refusal(path, "a tensor on the meta device: it has a shape but no numbers")
    elif kind not in _MAPPINGS and kind not in _SEQUENCES:
        raise _refusal(path, f"a {kind.__module__}.{kind.__qualname__}")
    if id(value) in above:
        raise _refusal(path, f"a {kind.__name__} that contains itself")
    above.add(id(value))
    for part, part_path in _parts(value, path):
        _require(part, part_path, above)
    above.remove(id(value))


def _parts(value: Any, path: str) -> Iterator[tuple[Any, str]]:
    """All that is pickled along with a value."""
    kind = type(value)
    if kind in _MAPPINGS:
        for key, part in value.items():
            yield key, f"the key {key!r} of {path}"
            yield part, f"{path}[{key!r}]"
    elif kind in _SEQUENCES:
        for index, part in enumerate(value):
            yield part, f"{path}[{index}]"
    # Attributes travel too: `_metadata` of a module's state_dict, marks that someone put on a parameter.
    for attribute, part in getattr(value, "__dict__", {}).items():
        yield part, f"{path}.{attribute}"


def _refusal(path: str, what: str) -> CheckpointError:
    return CheckpointError(
        f"{path} is {what}; it could be saved, but not loaded without running code from the file.",
        code="checkpoint-plain-data",
        do="A checkpoint holds tensors, numbers, text, bytes, None, and dicts, lists, tuples and sets of them.\n"
        "Turn it into that where the state is made, e.g. float(x), x.value, str(path), torch.from_numpy(x), vars(x),\n"
        "and turn it back where the state is loaded.",
    )
