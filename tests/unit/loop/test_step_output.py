"""What a training step may return."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from drivetrain import StepOutputError
from drivetrain.loop.step_output import StepOutput, read_output

LOSS = torch.tensor(1.0)


@pytest.mark.parametrize(
    ("output", "loss", "weight"),
    [
        (LOSS, LOSS, None),
        (None, None, None),
        ({"loss": LOSS}, LOSS, None),
        ({"loss": LOSS, "weight": 3, "logits": 1}, LOSS, 3),
        ({"loss": None}, None, None),
        (StepOutput(LOSS), LOSS, None),
        (StepOutput(LOSS, 7), LOSS, 7),
        (StepOutput(None, 7), None, 7),
    ],
)
def test_loss_and_weight_are_read(output: Any, loss: Any, weight: Any) -> None:
    """A mean over tokens would be weighted by samples."""
    found = read_output(output)
    assert found[0] is loss and found[1] == weight


@pytest.mark.parametrize(
    ("output", "text"),
    [
        (0.5, "a float"),
        ("loss", "a str"),
        ([LOSS], "a list"),
        ((LOSS, 3), "a tuple"),
        ({"lost": LOSS, "b": 1}, "a dict with the keys ['b', 'lost']"),
        (True, "a bool"),
    ],
)
def test_anything_else_is_refused(output: Any, text: str) -> None:
    """A step with a wrong key would train nothing."""
    with pytest.raises(StepOutputError) as caught:
        read_output(output)
    assert caught.value.code == "step-output" and f"training_step returned {text}" in str(caught.value)
