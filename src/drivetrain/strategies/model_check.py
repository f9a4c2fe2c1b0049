"""Do all ranks hold the same module?"""

from __future__ import annotations

import hashlib

from torch import nn

from drivetrain.base.errors import ModelError
from drivetrain.comm.collectives import Collectives


def check_same_model(module: nn.Module, collectives: Collectives) -> None:
    """Compare names, shapes and dtypes of parameters and buffers over ranks.

    Ranks: all (one small message; a second one only where they differ).

    Raises:
        ModelError: On every rank, naming the first difference.
    """
    layout = [
        (name, tuple(tensor.shape), str(tensor.dtype))
        for name, tensor in (*module.named_parameters(), *module.named_buffers())
    ]
    digest = hashlib.sha256(repr(layout).encode()).hexdigest()
    digests = collectives.gather_objects(digest)
    if len(set(digests)) == 1:
        return
    layouts = collectives.gather_objects(layout)
    other = next(rank for rank, one in enumerate(digests) if one != digests[0])
    first, second = dict((n, (s, d)) for n, s, d in layouts[0]), dict((n, (s, d)) for n, s, d in layouts[other])
    name = next(n for n in (*first, *second) if first.get(n) != second.get(n)) if first != second else "their order"
    raise ModelError(
        f"Ranks hold different {type(module).__name__} modules: {name!r} is {_show(first.get(name))} on rank 0 and "
        f"{_show(second.get(name))} on rank {other}.",
        code="model-differs",
        do="Build the module alike on all ranks: nothing in it may depend on the rank.",
        rank=(collectives.rank, collectives.world_size),
    )


def _show(entry: tuple[tuple[int, ...], str] | None) -> str:
    return "missing" if entry is None else f"{list(entry[0])} {entry[1]}"
