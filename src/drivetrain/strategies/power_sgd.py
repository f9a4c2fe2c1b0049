"""PowerSGD: a gradient matrix is sent as two thin factors, and what they miss is added to the next gradient.

Vogels, Karimireddy, Jaggi 2019, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization",
arXiv:1905.13727, algorithms 1 and 2 with warm start. torch's own hook (2.13) sends from within callbacks, so that
several buckets mix up their collectives on gloo, and keeps its state by bucket, which DDP rebuilds; this one sends in
the order of the buckets and keeps its state by parameter, so that it can be saved.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket

from drivetrain.base.errors import ConfigError

_NARROW = (torch.float16, torch.bfloat16)


class PowerSGD:
    """The settings of `comm_hook="powersgd"`; for each module of a run also its state. Not exact.

    Attributes:
        num_steps: Gradient syncs so far.
        errors: By parameter, what this rank's last gradient had and the factors missed. Each rank has its own.
        factors: By parameter, the right factor `(columns, rank)` of the last sync, where the next one begins.

    Args:
        rank: Columns of a factor: more are closer to the gradient, and cost more.
        start_step: The first so many gradient syncs are exact.
        min_rate: A matrix is sent whole if its factors are not smaller by this factor.
    """

    def __init__(self, rank: int = 1, *, start_step: int = 2, min_rate: float = 2.0) -> None:
        if rank < 1 or start_step < 0:
            raise ConfigError(
                f"PowerSGD(rank={rank!r}, start_step={start_step!r}) is not possible.",
                code="comm-hook",
                do="Use a rank of 1 or more, and 0 or more for start_step.",
            )
        self.rank = rank
        self.start_step = start_step
        self.min_rate = min_rate
        self.num_steps = 0
        self.errors: dict[str, Tensor] = {}
        self.factors: dict[str, Tensor] = {}
        self._names: dict[int, str] = {}

    def of_module(self, module: nn.Module) -> PowerSGD:
        """The same settings with a state of its own for one module."""
        own = PowerSGD(self.rank, start_step=self.start_step, min_rate=self.min_rate)
        own._names = {id(parameter): name for name, parameter in module.named_parameters()}
        return own

    def sync(self, group: dist.ProcessGroup | None, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        """Replace a bucket of gradients by about their mean.

        Ranks: all, once for each bucket (two all-reduces of the factors; one of the gradients in exact steps).
        """
        buffer = bucket.buffer()
        with torch.no_grad():
            if self.num_steps < self.start_step:
                dist.all_reduce(buffer.div_(dist.get_world_size(group)), group=group)
            else:
                names = [self._names[id(parameter)] for parameter in bucket.parameters()]
                self._compress(names, bucket.gradients(), group)
        if bucket.is_last():
            self.num_steps += 1
        future: torch.futures.Future[Tensor] = torch.futures.Future(
            devices=[buffer.device] if buffer.device.type == "cuda" else None
        )
        future.set_result(buffer)
        return future

    def _compress(self, names: Sequence[str], gradients: Sequence[Tensor], group: dist.ProcessGroup | None) -> None:
        world = dist.get_world_size(group)
        matrices: dict[str, Tensor] = {}
        targets: dict[str, Tensor] = {}
        whole = []
        for name, gradient in zip(names, gradients, strict=True):
            if self._is_worth_it(gradient):
                matrix = gradient.view(len(gradient), -1)
                wide = matrix.float() if matrix.dtype in _NARROW else matrix.clone()
                matrices[name] = wide.add_(self.errors[name].to(wide.device)) if name in self.errors else wide
                targets[name] = matrix
            else:
                whole.append(gradient)
        left = {name: matrix @ self._right(name, matrix) for name, matrix in matrices.items()}
        _sum_over_ranks([*whole, *left.values()], group)
        for gradient in whole:
            gradient.div_(world)
        left = {name: torch.linalg.qr(one).Q for name, one in left.items()}
        right = {name: matrix.T @ left[name] for name, matrix in matrices.items()}
        _sum_over_ranks(list(right.values()), group)
        for name, matrix in matrices.items():
            mean = left[name] @ right[name].div_(world).T
            self.errors[name] = matrix.sub_(mean)
            self.factors[name] = right[name]
            targets[name].copy_(mean)

    def _is_worth_it(self, gradient: Tensor) -> bool:
        if gradient.ndim < 2 or not gradient.numel():
            return False
        num_rows = len(gradient)
        num_columns = gradient.numel() // num_rows
        rank = min(self.rank, num_rows, num_columns)
        return (num_rows + num_columns) * rank * self.min_rate < gradient.numel()

    def _right(self, name: str, matrix: Tensor) -> Tensor:
        """The right factor to begin with: that of the last sync, else random numbers that are the same on all ranks."""
        if name in self.factors:
            return self.factors[name].to(matrix.device)
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        size = (matrix.shape[1], min(self.rank, *matrix.shape))
        return torch.randn(size, generator=generator, dtype=torch.float64).to(matrix)

    def state_dict(self) -> dict[str, Any]:
        """What this rank needs to go on."""
        return {"num_steps": self.num_steps, "errors": self.errors, "factors": self.factors}

    def load_state_dict(self, state: Mapping[str, Any], *, has_errors: bool = True) -> None:
        """Go on from a saved state.

        Args:
            state: From `state_dict`.
            has_errors: False for another rank's state: its errors are not this one's.
        """
        self.num_steps = state["num_steps"]
        self.errors = dict(state["errors"]) if has_errors else {}
        self.factors = dict(state["factors"])


def _sum_over_ranks(tensors: Sequence[Tensor], group: dist.ProcessGroup | None) -> None:
    """Sum in place over ranks, in one message for each dtype."""
    for dtype in {tensor.dtype: None for tensor in tensors}:
        own = [tensor for tensor in tensors if tensor.dtype == dtype]
        flat = torch.cat([tensor.reshape(-1) for tensor in own])
        dist.all_reduce(flat, group=group)
        for tensor, part in zip(own, flat.split([tensor.numel() for tensor in own]), strict=True):
            tensor.copy_(part.view(tensor.shape))
