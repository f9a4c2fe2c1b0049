"""Parameters that FSDP2 cannot shard, those without a dim: every rank holds them, and their gradients are averaged."""

from __future__ import annotations

import torch
import torch.distributed as dist

from drivetrain.strategies.fsdp_parts import ShardedModule
from drivetrain.strategies.fsdp_trace import PLAIN, Trace


def reduce_plain(module: ShardedModule, trace: Trace) -> None:
    """Average the gradients of what is not sharded; what has none gives zero.

    Ranks: all (one all-reduce for each dtype).
    """
    parameters = [parameter for parameter in module.plain if parameter.requires_grad]
    if not parameters:
        return
    trace.note("plain", module.number, PLAIN)
    for dtype in dict.fromkeys(parameter.dtype for parameter in parameters):
        own = [parameter for parameter in parameters if parameter.dtype == dtype]
        for parameter in own:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        message = torch.stack([parameter.grad for parameter in own])  # type: ignore[misc]
        dist.all_reduce(message)
        message /= dist.get_world_size()
        for parameter, gradient in zip(own, message, strict=True):
            parameter.grad.copy_(gradient)  # type: ignore[union-attr]
