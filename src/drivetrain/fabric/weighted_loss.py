"""Losses as weighted means: what a weight may be, what a loss may be, and how gradients are brought to a mean."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from drivetrain.base.errors import StepOutputError
from drivetrain.strategies.sharded_gradients import local_part


def read_weight(weight: Any) -> Any:
    """A weight as a number; one that is a tensor of another device stays there, so that the host need not wait."""
    if not isinstance(weight, Tensor):
        return weight
    weight = weight.detach()
    return float(weight) if weight.device.type == "cpu" else weight


def has_loss(loss: Any, weight: Any) -> bool:
    """There is something to add: not `None`, and not what counts 0.

    Raises:
        StepOutputError: The loss is not a 0-dim tensor with a graph.
    """
    if loss is None or (not isinstance(weight, Tensor) and weight == 0):
        return False
    if not isinstance(loss, Tensor):
        what = f"The loss is a {type(loss).__name__}, {loss!r:.80}."
    elif loss.ndim:
        what = f"The loss has shape {list(loss.shape)}."
    elif not loss.requires_grad:
        what = "The loss has no graph: no parameter took part in it, or it was detached."
    else:
        return True
    raise StepOutputError(
        what,
        code="loss",
        do="Return the mean loss as a 0-dim tensor that depends on the parameters, or None to add nothing.",
    )


def check_same_weight(known: Any, weight: Any) -> None:
    """Losses of one micro-batch have one weight; of two tensors that is not looked at.

    Raises:
        StepOutputError: They have not.
    """
    if weight is not known and not isinstance(weight, Tensor) and weight != known:
        raise StepOutputError(
            f"Two losses of one micro-batch are means over {known} and over {weight} units.",
            code="loss",
            do="Give the losses of a micro-batch the same weight, or add them up and call backward once.",
        )


def scale_loss(loss: Tensor, weight: Any, nominal: Any) -> Tensor:
    """The loss times its weight over the nominal weight of a window."""
    scale = weight / nominal
    return loss * scale if isinstance(scale, Tensor) or scale != 1.0 else loss


def multiply_gradients(parameters: Iterable[nn.Parameter], factor: Any) -> None:
    """Multiply all gradients in place; nothing is done for 1."""
    if not isinstance(factor, Tensor) and factor == 1.0:
        return
    by_device: dict[torch.device, list[Tensor]] = {}  # sharded gradients may be offloaded, others are not
    for parameter in parameters:
        if parameter.grad is not None:
            gradient = local_part(parameter.grad)
            by_device.setdefault(gradient.device, []).append(gradient)
    for device, gradients in by_device.items():
        torch._foreach_mul_(gradients, factor.to(device) if isinstance(factor, Tensor) else factor)


def sum_weights(own: Any, collectives: Any, device: torch.device) -> Any:
    """The weight of all ranks: a number, or a 0-dim tensor of the device where a read-back would make the host wait.

    Ranks: all.
    """
    if collectives.world_size == 1:
        return own
    if device.type == "cpu":
        return collectives.agree([float(own)])[0]
    weight = own if isinstance(own, Tensor) else torch.tensor(float(own), device=device)
    return collectives.all_reduce(weight.to(torch.float64), op="sum")
