"""Gathering that gradients go back through."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from drivetrain.comm.collectives import Collectives, map_values


def gather_with_gradients(collectives: Collectives, data: Any) -> Any:
    """Stack tensors of all ranks as `all_gather` does; each rank gets the gradients that all ranks have for its part.

    Ranks: all (one all-gather for each tensor, and one all-reduce in the backward of each).

    Args:
        collectives: Of the ranks.
        data: A tensor, a number, or a nested structure of them, of equal shapes on all ranks.
    """

    def gather(tensor: Tensor) -> Any:
        if not tensor.requires_grad:
            return collectives.all_gather(tensor)
        return _Gather.apply(collectives, tensor)  # type: ignore[no-untyped-call]

    return map_values(gather, data)


class _Gather(torch.autograd.Function):
    """A part of each rank, stacked."""

    @staticmethod
    def forward(ctx: Any, collectives: Collectives, tensor: Tensor) -> Any:
        ctx.collectives = collectives
        return collectives.all_gather(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return None, ctx.collectives.all_reduce(gradients[0], "sum")[ctx.collectives.rank]
