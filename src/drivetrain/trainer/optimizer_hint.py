"""A word on an optimizer that takes much of a training, and could take less."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch.optim import Optimizer

from drivetrain.strategies.optimizer_names import parameters_of

_DEVICES: dict[type[Optimizer], tuple[str, ...]] = {  # on which torch (2.13) has a fused kernel
    torch.optim.Adam: ("cpu", "cuda", "mps"),
    torch.optim.AdamW: ("cpu", "cuda", "mps"),
    torch.optim.SGD: ("cpu", "cuda", "mps"),
    torch.optim.Adagrad: ("cpu",),
}
SHARE = 0.1  # of the time of windows; below it there is little to win


def optimizer_hint(seconds: Mapping[str, float], optimizers: Sequence[Optimizer]) -> str:
    """What to try, in one line; empty if there is nothing.

    Nothing is switched on: another implementation of an optimizer rounds otherwise.

    Args:
        seconds: Part of the training to its time.
        optimizers: Of the training.
    """
    step_s = sum(value for name, value in seconds.items() if name not in ("validation", "checkpoint", "loader start"))
    share = seconds.get("optimizer", 0.0) / step_s if step_s else 0.0
    kinds = sorted({type(one).__name__ for one in optimizers if can_fuse(one)}) if share > SHARE else []
    if not kinds:
        return ""
    return (
        f"The optimizer took {100 * share:.0f} % of the steps; {', '.join(kinds)} can update all parameters in one "
        "kernel: try fused=True (results differ in rounding)."
    )


def can_fuse(optimizer: Optimizer) -> bool:
    """It has a `fused` that is off, and torch has that kernel for its parameters."""
    devices = _DEVICES.get(type(optimizer), ())
    groups, parameters = optimizer.param_groups, parameters_of(optimizer)
    is_chosen = any(group.get(name) for group in groups for name in ("fused", "foreach", "differentiable"))
    return not is_chosen and all(one.is_floating_point() and one.device.type in devices for one in parameters)
