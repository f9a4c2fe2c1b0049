"""What a rank without a micro-batch, or without a loss, does while the others run theirs: the same collectives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from drivetrain.strategies.fsdp_parts import Part, ShardedModule, fill_accumulated
from drivetrain.strategies.fsdp_plain import reduce_plain
from drivetrain.strategies.fsdp_trace import PLAIN, Event, Trace


def join_idle(
    trace: Trace, modules: Sequence[ShardedModule], prepared: Sequence[ShardedModule], *, is_synced: bool
) -> None:
    """Issue what the others still issue in this block, and leave the modules as after a backward.

    Ranks: those that are idle, while the others run their micro-batch.

    Args:
        trace: A block of it is open.
        modules: Those of the block.
        prepared: All of the strategy, by number.
        is_synced: Gradients are reduced in this block.
    """
    otherwise = [event for one in modules for event in _reductions(one)] if is_synced else []
    touched = {one.number: one for one in modules}
    for one in modules:
        one.root._root_pre_forward(one.wrapped, (), {})  # what gathers waits for the optimizer
    with torch.no_grad():
        for event in trace.follow(otherwise):
            module = touched.setdefault(event.module, prepared[event.module])
            if event.kind == "plain":
                reduce_plain(module, trace)
            elif event.kind in ("reduce", "scatter"):
                reduce_part(module.parts[event.part], is_reduced_over_all=event.kind == "reduce")
            else:
                _gather(module.parts[event.part], is_forward=event.kind == "forward")
    for module in touched.values():
        finish_backward(module)


def _reductions(module: ShardedModule) -> list[Event]:
    plain = [Event("plain", module.number, PLAIN)] if any(one.requires_grad for one in module.plain) else []
    return [*(Event("reduce", module.number, part.number) for part in module.parts), *plain]


def finish_backward(module: ShardedModule) -> None:
    """What torch does at the end of a backward: parts are resharded, and what was noted for prefetching is dropped.

    Ranks: any.
    """
    root = module.root
    found = [(part.group, part.group.reduce_grads) for part in module.parts]
    for group, _ in found:
        group.reduce_grads = False  # what is to be reduced was; here is no other rank
    try:
        root._root_post_backward_final_callback()
    finally:
        for group, reduces in found:
            group.reduce_grads = reduces
    gathered = root._comm_ctx.all_gather_state
    if gathered is not None:  # torch frees it at the end of the root's forward
        for stream in (root._comm_ctx.all_gather_copy_in_stream, root._comm_ctx.all_gather_stream):
            stream.wait_event(gathered.event)
        root._comm_ctx.all_gather_state = None
    module.reshard()


def reduce_left(module: ShardedModule, trace: Trace) -> None:
    """Reduce what was left by parts that had no part in the last micro-batch, here or on other ranks.

    Ranks: all (one reduce-scatter for each such part).
    """
    left = trace.left
    pending = [one for one in module.parts if one.is_pending or (module.number, one.number) in left]
    for part in pending:
        reduce_part(part)
    if pending:
        finish_backward(module)
    if (module.number, PLAIN) in left:
        reduce_plain(module, trace)


def reduce_part(part: Part, *, is_reduced_over_all: bool = True) -> None:
    """Reduce a part's gradients; a parameter that has none gives zeros.

    Ranks: all.
    """
    group: Any = part.group
    found = group.reduce_grads, group.all_reduce_grads
    group.reduce_grads, group.all_reduce_grads = True, is_reduced_over_all
    try:
        _fill(group)
        group.post_backward()
    finally:
        group.reduce_grads, group.all_reduce_grads = found


def _fill(group: Any) -> None:
    trainable = fill_accumulated(group)
    for one in trainable:
        if one.unsharded_accumulated_grad is None and one.unsharded_param.grad is None:
            one.unsharded_param.grad = torch.zeros_like(one.unsharded_param)


def _gather(part: Part, *, is_forward: bool) -> None:
    """Give this rank's shard to the others, and keep nothing of theirs."""
    from torch.distributed.fsdp._fully_shard._fsdp_common import TrainingState

    group: Any = part.group
    if group.is_unsharded:
        group._to_sharded()
    with group.use_training_state(TrainingState.FORWARD if is_forward else TrainingState.PRE_BACKWARD):
        group.unshard()
        group.wait_for_unshard()
        if is_forward:
            group.reshard()  # over fewer ranks, where the backward is to gather over fewer
    if group.is_unsharded:
        group._to_sharded()
