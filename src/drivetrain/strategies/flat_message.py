"""Many tensors as one message: one collective for each dtype, instead of one for each tensor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

_NARROW = (torch.float16, torch.bfloat16)


@torch.no_grad()
def average_in_place(tensors: Iterable[Tensor]) -> None:
    """Replace tensors by their means over ranks.

    16-bit formats are summed in float32, in which they are sent too.

    Ranks: all (one all-reduce for each dtype, none on one rank).
    """
    world = dist.get_world_size()
    if world == 1:
        return
    for group in _by_dtype(tensors):
        flat = flatten(group)
        flat = flat.float() if flat.dtype in _NARROW else flat
        dist.all_reduce(flat)
        unflatten(flat.div_(world), group)


@torch.no_grad()
def broadcast_in_place(tensors: Iterable[Tensor]) -> None:
    """Replace tensors by those of rank 0.

    Ranks: all (one broadcast for each dtype, none on one rank).
    """
    if dist.get_world_size() == 1:
        return
    for group in _by_dtype(tensors):
        flat = flatten(group)
        dist.broadcast(flat, src=0)
        unflatten(flat, group)


def _by_dtype(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    groups: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        if tensor.numel():
            groups.setdefault(tensor.dtype, []).append(tensor)
    yield from groups.values()


def flatten(tensors: Sequence[Tensor]) -> Tensor:
    """Copies of tensors of one dtype and device, one after the other."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def unflatten(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    """Write the parts of a flat tensor back into the tensors that it was made of."""
    parts = flat.split([tensor.numel() for tensor in tensors])
    torch._foreach_copy_(list(tensors), [part.view(t.shape) for part, t in zip(parts, tensors, strict=True)])
