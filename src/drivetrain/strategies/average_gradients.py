"""Averaging gradients over ranks after backward, instead of in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from drivetrain.comm.collectives import Collectives
from drivetrain.strategies.flat_message import flatten, unflatten

BUCKET_BYTES = 25 * 2**20  # as DistributedDataParallel cuts them


def average_gradients(
    parameters: Sequence[nn.Parameter], collectives: Collectives, *, group: dist.ProcessGroup | None = None
) -> None:
    """Replace gradients by their mean over ranks. One that is missing counts as 0, unless all ranks miss it.

    Ranks: all, with the same parameters (one all-reduce for each bucket, and one small message).
    """
    if collectives.world_size == 1 or not parameters:
        return
    has_gradient = collectives.agree([float(p.grad is not None) for p in parameters], "max")
    used = [p for p, has_one in zip(parameters, has_gradient, strict=True) if has_one]
    for parameter in used:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    with torch.no_grad():
        for bucket in _buckets([p.grad for p in used if p.grad is not None]):
            flat = flatten(bucket)
            dist.all_reduce(flat, group=group)
            unflatten(flat.div_(collectives.world_size), bucket)


def _buckets(gradients: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Gradients of one dtype and device, of about `BUCKET_BYTES` together."""
    kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for gradient in gradients:
        kinds.setdefault((gradient.dtype, gradient.device), []).append(gradient)
    for kind in kinds.values():
        bucket: list[Tensor] = []
        size = 0
        for gradient in kind:
            bucket.append(gradient)
            size += gradient.numel() * gradient.element_size()
            if size >= BUCKET_BYTES:
                yield bucket
                bucket, size = [], 0
        if bucket:
            yield bucket
