"""A fabric on the CPU for the length of a block, in a rank or alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from drivetrain import DDP, Fabric
from drivetrain.cluster.read_cluster import current_cluster
from drivetrain.fabric.fabric_module import FabricModule


@contextmanager
def open_fabric(*, precision: str | None = None, strategy: Any = None, **options: Any) -> Iterator[Fabric]:
    """A fabric with DDP of these options on several ranks, or on a single device alone; or with the strategy given."""
    world = current_cluster().world_size
    if strategy is None:
        strategy = DDP(**options) if world > 1 else "auto"
    fabric = Fabric(accelerator="cpu", devices=world, strategy=strategy, precision=precision)
    fabric.launch()
    try:
        yield fabric
    finally:
        fabric.close()


def gradients(module: FabricModule | nn.Module) -> dict[str, Tensor | None]:
    """Copies of the gradients, by name."""
    return {name: None if p.grad is None else p.grad.clone() for name, p in module.named_parameters()}


def weights(module: FabricModule | nn.Module) -> dict[str, Tensor]:
    """Copies of the module's state."""
    return {name: value.clone() for name, value in module.state_dict().items()}


def largest_difference(left: dict[str, Tensor], right: dict[str, Tensor]) -> float:
    """Over all tensors of two states with the same names."""
    assert left.keys() == right.keys()
    return max((left[name].double() - right[name].double()).abs().max().item() for name in left)


def error_of(function: Any, *args: Any) -> tuple[str, str, str]:
    """Kind, code and text of the error that a call ends with."""
    try:
        function(*args)
    except Exception as error:
        return type(error).__name__, getattr(error, "code", ""), str(error)
    return "", "", "no error"


def sgd(module: nn.Module) -> torch.optim.SGD:
    """An optimizer in which every gradient shows at once."""
    return torch.optim.SGD(module.parameters(), lr=0.1)
