"""The collectives of a part, as torch would issue them, written down on the way."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter
from torch.distributed.fsdp._fully_shard._fsdp_common import TrainingState

from drivetrain.base.errors import ModelError
from drivetrain.strategies.fsdp_parts import Part
from drivetrain.strategies.fsdp_trace import Trace


class _Gather(AllGather):
    """torch's default all-gather, written down."""

    def __init__(self, trace: Trace, module: int, part: Part) -> None:
        self.trace, self.module, self.part = trace, module, part

    def allocate(self, size: Any, *, dtype: Any, device: Any) -> Any:
        return _allocate(size, dtype, device)

    def __call__(self, output_tensor: Any, input_tensor: Any, group: Any, async_op: bool = False) -> Any:
        is_backward = self.part.group._training_state is TrainingState.PRE_BACKWARD
        self.trace.note("backward" if is_backward else "forward", self.module, self.part.number)
        return dist.all_gather_single(output_tensor, input_tensor, group=group, async_op=async_op)


class _Reduce(ReduceScatter):
    """torch's default reduce-scatter, written down, after a look whether all gradients are there."""

    def __init__(self, trace: Trace, module: int, part: Part) -> None:
        self.trace, self.module, self.part = trace, module, part

    def allocate(self, size: Any, *, dtype: Any, device: Any) -> Any:
        return _allocate(size, dtype, device)

    def __call__(self, output_tensor: Any, input_tensor: Any, group: Any, op: Any, async_op: bool = False) -> Any:
        self._require_complete(input_tensor.numel(), group.size())
        self.trace.note("reduce" if self.part.group.all_reduce_grads else "scatter", self.module, self.part.number)
        return dist.reduce_scatter_single(output_tensor, input_tensor, op=op, group=group, async_op=async_op)

    def _require_complete(self, num_given: int, num_ranks: int) -> None:
        """With a gradient missing on some ranks only, ranks would send messages of different sizes.

        Raises:
            ModelError: A trainable parameter of the part has no gradient.
        """
        parameters = self.part.group.fsdp_params
        sizes = {
            name: one.padded_sharded_param_size.numel() * num_ranks
            for name, one in zip(self.part.names, parameters, strict=True)
            if one.sharded_param.requires_grad
        }
        missing = sum(sizes.values()) - num_given
        if not missing:
            return
        fitting = [name for name, size in sizes.items() if size == missing]
        shown = fitting[0] if len(fitting) == 1 else f"some of {', '.join(sizes)}"
        raise ModelError(
            f"These parameters took no part in the loss, though others of their group did: {shown}.",
            code="unused-parameters",
            do="Use them, freeze them with requires_grad_(False), or pass FSDP(find_unused_parameters=True).",
            rank=(self.trace.rank, self.trace.world_size),
        )


def _allocate(size: Any, dtype: Any, device: Any) -> Any:
    return torch.empty(*size, dtype=dtype, device=device)


def record_part(trace: Trace, module: int, part: Part) -> None:
    """Let a part's collectives be written down."""
    part.module.set_custom_all_gather(_Gather(trace, module, part))
    part.module.set_custom_reduce_scatter(_Reduce(trace, module, part))
