"""Collectives as an object: handed to whoever has to talk to the other ranks, without a strategy or a trainer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from drivetrain.base.errors import ConfigError
from drivetrain.base.tree import map_tensors
from drivetrain.comm.shared_board import MAX_VALUES, SharedBoard, Usual

ReduceOp = Literal["mean", "sum", "max", "min"]
_REDUCE: dict[str, Callable[..., float]] = {"max": max, "min": min}
_OPS = {"mean": "SUM", "avg": "SUM", "sum": "SUM", "max": "MAX", "min": "MIN"}


class Collectives(ABC):
    """What ranks say to each other. Every method must be called by all ranks, in the same order.

    Attributes:
        rank: This one, from 0.
        world_size: Their number.
        num_alike: Neighbours that read the same data, because they share layers: what is summed over ranks counts once
            for them.
    """

    rank: int
    world_size: int
    num_alike: int = 1

    @property
    def is_global_zero(self) -> bool:
        """This is rank 0."""
        return self.rank == 0

    @abstractmethod
    def barrier(self) -> None:
        """Wait for every rank.

        Ranks: all.
        """

    @abstractmethod
    def all_reduce(self, data: Any, op: ReduceOp = "mean") -> Any:
        """Reduce tensors and numbers over ranks; the input is not changed.

        A mean is the sum in at least float32 (float64 for integers) over the number of ranks, never an integer
        division.

        Ranks: all (one all-reduce for each tensor).

        Args:
            data: A tensor, a number, or a nested structure of them, of equal shapes on all ranks.
            op: `"mean"`, `"sum"`, `"max"` or `"min"`.
        """

    @abstractmethod
    def all_gather(self, data: Any) -> Any:
        """Stack tensors of all ranks along a new first dim of size `world_size`, also on one rank.

        Ranks: all (one all-gather for each tensor).

        Args:
            data: A tensor, a number, or a nested structure of them, of equal shapes on all ranks.
        """

    @abstractmethod
    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """The object of rank `src`, on every rank. It is pickled; small messages only.

        Ranks: all.
        """

    @abstractmethod
    def gather_objects(self, obj: Any) -> list[Any]:
        """The objects of all ranks in order, on every rank. They are pickled; small messages only.

        Ranks: all.
        """

    def gather_numbers(self, values: Sequence[float]) -> list[list[float]]:
        """A few numbers of all ranks in order, in float64.

        Ranks: all, with as many numbers (one small message; none on one rank, or where ranks share memory).
        """
        return self.gather_objects([float(value) for value in values])

    def agree(self, values: Sequence[float], op: ReduceOp = "sum") -> list[float]:
        """Reduce a few numbers in float64 on the CPU: the small message of decisions.

        Ranks: all (one all-reduce of `8 * len(values)` bytes; none on one rank, or where ranks share memory).
        """
        return self.start_agreement(values, op)()

    @abstractmethod
    def start_agreement(self, values: Sequence[float], op: ReduceOp = "sum") -> Callable[[], list[float]]:
        """Begin to do what `agree` does, beside other work; the result is waited for when it is asked for.

        Ranks: all (as `agree`). Each rank must ask for the result once.
        """

    def start_usual(self, values: Sequence[float], usual: Usual) -> Callable[[], Sequence[float]]:
        """Begin to sum a few numbers that are mostly the same on all ranks: where they share memory that is cheaper.

        Ranks: all (as `start_agreement`), with an equal `usual`.

        Args:
            values: This rank's; `usual.values` itself for what is usual.
            usual: What ranks mostly say.

        Returns:
            A function that gives the sums: `usual.sums` itself if they are the usual ones.
        """
        finish = self.start_agreement(values)

        def compare() -> Sequence[float]:
            sums = finish()
            return usual.sums if sums == [*usual.sums] else sums

        return compare


class SoloCollectives(Collectives):
    """One rank: nothing is sent."""

    rank = 0
    world_size = 1

    def barrier(self) -> None:
        """Nothing to wait for.

        Ranks: all.
        """

    def all_reduce(self, data: Any, op: ReduceOp = "mean") -> Any:
        """The data, copied.

        Ranks: all.
        """
        _check_op(op)
        return map_values(lambda tensor: _as_reducible(tensor, op).clone(), data)

    def all_gather(self, data: Any) -> Any:
        """The data with a first dim of size 1.

        Ranks: all.
        """
        return map_values(lambda tensor: tensor.detach().unsqueeze(0).clone(), data)

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """The object itself.

        Ranks: all.
        """
        return obj

    def gather_objects(self, obj: Any) -> list[Any]:
        """A list of the object.

        Ranks: all.
        """
        return [obj]

    def start_agreement(self, values: Sequence[float], op: ReduceOp = "sum") -> Callable[[], list[float]]:
        """The values.

        Ranks: all.
        """
        return lambda: list(values)


class GroupCollectives(Collectives):
    """The ranks of a process group.

    Args:
        device: Where this rank's tensors live; results come back there.
        group: The group for tensors; `None` is the default group.
        cpu_group: A gloo group of the same ranks for objects and small messages, so that no decision waits for
            the device and none mixes with the gradients' group.
        board: Memory that all ranks share, for the small messages instead of the group, where there is one.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        group: dist.ProcessGroup | None = None,
        cpu_group: dist.ProcessGroup | None = None,
        board: SharedBoard | None = None,
    ) -> None:
        self.device = device
        self.group = group
        self.cpu_group = cpu_group
        self.board = board
        self.rank = dist.get_rank(group)
        self.world_size = dist.get_world_size(group)

    def barrier(self) -> None:
        """Wait for every rank of the group.

        Ranks: all.
        """
        dist.barrier(group=self.cpu_group if self.cpu_group is not None else self.group)

    def all_reduce(self, data: Any, op: ReduceOp = "mean") -> Any:
        """Reduce over the group.

        Ranks: all (one all-reduce for each tensor).
        """
        _check_op(op)

        def reduce(tensor: Tensor) -> Tensor:
            result = _as_reducible(tensor, op).to(self.device, copy=True).contiguous()
            dist.all_reduce(result, op=getattr(dist.ReduceOp, _OPS[op]), group=self.group)
            return result / self.world_size if op in ("mean", "avg") else result

        return map_values(reduce, data)

    def all_gather(self, data: Any) -> Any:
        """Stack over the group.

        Ranks: all (one all-gather for each tensor).
        """

        def gather(tensor: Tensor) -> Tensor:
            own = tensor.detach().to(self.device).contiguous()
            parts = [torch.empty_like(own) for _ in range(self.world_size)]
            dist.all_gather(parts, own, group=self.group)
            return torch.stack(parts)

        return map_values(gather, data)

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """The object of rank `src` of the group.

        Ranks: all.
        """
        box = [obj if self.rank == src else None]
        dist.broadcast_object_list(box, group=self.cpu_group, group_src=src)
        return box[0]

    def gather_objects(self, obj: Any) -> list[Any]:
        """The objects of the group's ranks.

        Ranks: all.
        """
        objects: list[Any] = [None] * self.world_size
        dist.all_gather_object(objects, obj, group=self.cpu_group)
        return objects

    def gather_numbers(self, values: Sequence[float]) -> list[list[float]]:
        """A few numbers of the group's ranks.

        Ranks: all, with as many numbers (one all-gather, or none over shared memory).
        """
        if self.board is None:
            own = torch.tensor(values, dtype=torch.float64)
            parts = [torch.empty_like(own) for _ in range(self.world_size)]
            dist.all_gather(parts, own, group=self.cpu_group)
            return [part.tolist() for part in parts]
        rows: list[list[float]] = [[] for _ in range(self.world_size)]
        for start in range(0, len(values), MAX_VALUES):
            for row, part in zip(rows, self.board.post(values[start : start + MAX_VALUES])(), strict=True):
                row += part
        return rows

    def start_agreement(self, values: Sequence[float], op: ReduceOp = "sum") -> Callable[[], list[float]]:
        """Begin to reduce a few numbers over the group.

        Ranks: all (one all-reduce of `8 * len(values)` bytes, or none over shared memory).
        """
        _check_op(op)
        if self.board is not None and len(values) <= MAX_VALUES:
            return partial(_reduce_rows, self.board.post(values), op)
        message = torch.tensor(values, dtype=torch.float64)
        group = self.cpu_group if self.cpu_group is not None else dist.group.WORLD
        assert group is not None, "a group is open"
        work = group.allreduce([message], getattr(dist.ReduceOp, _OPS[op]))  # `dist.all_reduce` without its checks

        def finish() -> list[float]:
            work.wait()
            result: list[float] = (message / self.world_size if op in ("mean", "avg") else message).tolist()
            return result

        return finish

    def start_usual(self, values: Sequence[float], usual: Usual) -> Callable[[], Sequence[float]]:
        """Begin to sum a few numbers that are mostly the same over the group.

        Ranks: all (as `start_agreement`), with an equal `usual`.
        """
        if self.board is None:
            return super().start_usual(values, usual)
        return partial(_sum_rows, self.board.post(values, usual), usual)


def _sum_rows(collect: Callable[[], Sequence[Sequence[float]]], usual: Usual) -> Sequence[float]:
    rows = collect()
    return usual.sums if rows is usual.rows else list(map(sum, zip(*rows, strict=True)))


def _reduce_rows(collect: Callable[[], Sequence[Sequence[float]]], op: str) -> list[float]:
    """Over ranks, in their order, so that all come to the same sum."""
    rows = collect()
    reduced: list[float] = list(map(_REDUCE.get(op, sum), zip(*rows, strict=True)))
    return [value / len(rows) for value in reduced] if op in ("mean", "avg") else reduced


def _check_op(op: str) -> None:
    if op not in _OPS:
        raise ConfigError(f"op={op!r} is not a reduction.", code="reduce-op", do="Use 'mean', 'sum', 'max' or 'min'.")


def _as_reducible(tensor: Tensor, op: str) -> Tensor:
    tensor = tensor.detach()
    if op in ("mean", "avg") and not (tensor.is_floating_point() or tensor.is_complex()):
        return tensor.to(torch.float64)
    return tensor


def map_values(function: Any, data: Any) -> Any:
    """Apply a function to every tensor and number of a nested structure; numbers are made tensors."""
    if isinstance(data, (bool, int, float)):
        return function(torch.tensor(data, dtype=torch.float64 if isinstance(data, float) else None))
    if isinstance(data, dict):
        return {key: map_values(function, value) for key, value in data.items()}
    if type(data) in (list, tuple):
        return type(data)(map_values(function, value) for value in data)
    return map_tensors(function, data)
