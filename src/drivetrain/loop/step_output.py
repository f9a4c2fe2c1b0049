"""What a training step returns, read into a loss and a weight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from drivetrain.base.errors import StepOutputError


@dataclass
class StepOutput:
    """A training step's result, as a class instead of a dict.

    Attributes:
        loss: The mean over `weight` units, 0-dim; `None` adds nothing.
        weight: Units (samples, tokens, ...) that the loss is a mean over; `None` stands for the micro-batch's samples.
    """

    loss: Tensor | None
    weight: Any = None


def read_output(output: Any) -> tuple[Tensor | None, Any]:
    """Loss and weight of what `training_step` returned: a tensor, a mapping with `"loss"`, a `StepOutput` or `None`.

    Raises:
        StepOutputError: It is something else.
    """
    if isinstance(output, Tensor) or output is None:
        return output, None
    if isinstance(output, Mapping) and "loss" in output:
        return output["loss"], output.get("weight")
    if isinstance(output, StepOutput):
        return output.loss, output.weight
    held = f" with the keys {sorted(map(str, output))}" if isinstance(output, Mapping) else ""
    raise StepOutputError(
        f"training_step returned a {type(output).__name__}{held}.",
        code="step-output",
        do='Return the mean loss as a tensor, {"loss": loss, "weight": units}, or None to add nothing.',
    )
