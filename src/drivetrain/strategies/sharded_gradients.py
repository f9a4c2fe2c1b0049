"""Gradients of which each rank holds a part, or all: their norm, clipping, scaling, and the look for inf and nan."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from drivetrain.base.errors import NonFiniteError
from drivetrain.strategies.optimizer_names import parameters_of

Groups = tuple[dist.ProcessGroup, ...]


def gradients_of(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    """The gradients that are there, each once."""
    unique = {id(parameter): parameter for parameter in parameters}.values()
    return [parameter.grad for parameter in unique if parameter.grad is not None]


def local_part(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor: a view."""
    local: Tensor = getattr(tensor, "_local_tensor", tensor)
    return local


def total_norm(gradients: Sequence[Tensor], norm_type: float, device: torch.device) -> Tensor:
    """The norm of all gradients together, in float32 or more.

    Ranks: all (one all-reduce for each mesh axis that shards parameters).

    Args:
        gradients: Sharded or not; of the latter every rank holds all.
        norm_type: Which norm.
        device: Where the result is.
    """
    kept: dict[Groups, list[Tensor]] = {}
    for gradient in gradients:
        kept.setdefault(_groups_of(gradient), []).append(local_part(gradient))
    is_max = norm_type == torch.inf
    parts: list[Tensor] = []
    for groups, tensors in kept.items():
        norm = _local_norm([tensor for tensor in tensors if tensor.numel()], norm_type, tensors[0])
        part = norm if is_max else norm**norm_type
        for group in groups:
            dist.all_reduce(part, op=dist.ReduceOp.MAX if is_max else dist.ReduceOp.SUM, group=group)
        parts.append(part)
    if not parts:
        return torch.zeros((), device=device)
    if len(parts) > 1:
        dtype = max((part.dtype for part in parts), key=lambda dtype: torch.finfo(dtype).bits)
        parts = [part.to(device, dtype) for part in parts]
    total = torch.stack(parts).to(device)  # offloaded gradients are on the host
    return total.amax() if is_max else total.sum() ** (1 / norm_type)


def _groups_of(gradient: Tensor) -> Groups:
    mesh: Any = getattr(gradient, "device_mesh", None)
    placements: Any = getattr(gradient, "placements", ())
    return tuple(mesh.get_group(axis) for axis, one in enumerate(placements) if not one.is_replicate())


def _local_norm(tensors: list[Tensor], norm_type: float, like: Tensor) -> Tensor:
    if not tensors:  # fewer rows than ranks
        return like.new_zeros((), dtype=torch.promote_types(like.dtype, torch.float32))
    dtype = torch.promote_types(tensors[0].dtype, torch.float32)
    norms: Any = torch._foreach_norm(tensors, norm_type, dtype=dtype)
    norm: Tensor = torch.linalg.vector_norm(torch.stack([one.to(dtype) for one in norms]), norm_type)
    return norm


@torch.no_grad()
def clip_norm(gradients: Sequence[Tensor], max_norm: float, total: Tensor, *, error_if_nonfinite: bool) -> None:
    """Scale gradients in place so that their norm is at most `max_norm`, as torch does on one rank.

    Ranks: any.

    Raises:
        NonFiniteError: The norm is inf or nan, and that is an error.
    """
    if error_if_nonfinite and not bool(total.isfinite()):
        raise NonFiniteError(
            f"The gradients cannot be clipped: their total norm is {float(total)}.",
            code="non-finite",
            do="Look for the inf or nan in the loss, or pass error_if_nonfinite=False.",
        )
    factor = torch.clamp(max_norm / (total + 1e-6), max=1.0)
    scale(gradients, factor)


@torch.no_grad()
def clip_value(gradients: Sequence[Tensor], max_value: float) -> None:
    """Clamp gradients in place."""
    for tensors in _by_format(gradients):
        torch._foreach_clamp_min_(tensors, -max_value)
        torch._foreach_clamp_max_(tensors, max_value)


@torch.no_grad()
def scale(gradients: Sequence[Tensor], factor: Tensor | float) -> None:
    """Multiply gradients in place."""
    for tensors in _by_format(gradients):
        own = factor.to(tensors[0].device, tensors[0].dtype) if isinstance(factor, Tensor) else factor
        torch._foreach_mul_(tensors, own)


def _by_format(gradients: Sequence[Tensor]) -> list[list[Tensor]]:
    """What this rank holds, in lists of one dtype and device."""
    found: dict[Any, list[Tensor]] = {}
    for gradient in gradients:
        own = local_part(gradient)
        found.setdefault((own.device, own.dtype), []).append(own)
    return list(found.values())


class ShardedGradScaler(torch.amp.GradScaler):
    """A scaler for which an overflow on one rank is one on all.

    torch's own takes either sharded or plain gradients, but not both in one optimizer, and asks each rank for itself
    where they are plain.
    """

    def _unscale_grads_(
        self, optimizer: Optimizer, inv_scale: Tensor, found_inf: Tensor, allow_fp16: bool
    ) -> dict[torch.device, Tensor]:
        gradients = gradients_of(parameters_of(optimizer))
        if not allow_fp16 and any(gradient.dtype == torch.float16 for gradient in gradients):
            raise ValueError("Attempting to unscale FP16 gradients.")
        found = found_inf.clone()
        for tensors in _by_format(gradients):
            device = tensors[0].device
            own = found.to(device)  # a copy where gradients are offloaded
            torch._amp_foreach_non_finite_check_and_unscale_(tensors, own, inv_scale.to(device))
            found = own.to(found.device)
        dist.all_reduce(found, op=dist.ReduceOp.MAX)
        return {found.device: found}
