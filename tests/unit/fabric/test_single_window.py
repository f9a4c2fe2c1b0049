"""The window of one micro-batch on one rank makes the step of any other window."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from drivetrain import Fabric, SingleDevice
from drivetrain.fabric.single_window import SingleWindow

Forward = Callable[[], torch.Tensor]


class OwnSync(SingleDevice):
    """Wants to be told of each micro-batch, and so gets windows of the general kind."""

    def gradient_sync(self, prepared: Any, enabled: bool = True) -> Any:
        return super().gradient_sync(prepared, enabled)


def train(strategy: SingleDevice, losses: Any, **policies: Any) -> tuple[list[torch.Tensor], set[bool]]:
    """Train for an epoch; weights after each window, and whether they were single ones."""
    fabric = Fabric(accelerator="cpu", devices=1, strategy=strategy)
    fabric.launch()
    torch.manual_seed(1)
    net = nn.Linear(3, 1).double()
    model, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
    data = TensorDataset(torch.randn(22, 3, dtype=torch.float64))
    loader = fabric.setup_dataloaders(DataLoader(data, batch_size=4))
    trace, kinds = [], set()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number, window in enumerate(fabric.windows(loader, model, optimizer, **policies)):
            kinds.add(isinstance(window._window, SingleWindow))
            for (x,) in window:
                for loss, weight in losses(number, lambda x=x: model(x)):
                    window.backward(loss, weight)
            assert window.loss is None or not window.loss.requires_grad
            trace.append(net.weight.detach().clone())
    fabric.close()
    return trace, kinds


def one(number: int, y: Forward) -> list[tuple[torch.Tensor, Any]]:
    """The usual loss."""
    return [(y().pow(2).mean(), None)]


def several(number: int, y: Forward) -> list[tuple[torch.Tensor, Any]]:
    """Losses that add up, with a weight of their own."""
    return [(y().pow(2).mean(), 7), (y().abs().mean(), 7)]


def sometimes_none(number: int, y: Forward) -> list[tuple[torch.Tensor, Any]]:
    """Windows without a loss, and with one that counts nothing."""
    return [[], [(y().pow(2).mean(), 0)], [(y().pow(2).mean(), torch.tensor(3.0))]][number % 3]


def sometimes_nan(number: int, y: Forward) -> list[tuple[torch.Tensor, Any]]:
    """A loss that is not finite."""
    return [(y().pow(2).mean() * (float("nan") if number == 2 else 1.0), None)]


@pytest.mark.parametrize(
    ("losses", "policies"),
    [(one, {}), (one, {"max_norm": 0.1}), (several, {}), (sometimes_none, {}), (sometimes_nan, {"nonfinite": "skip"})],
)
def test_it_makes_the_step_of_a_general_window(losses: Any, policies: dict[str, Any]) -> None:
    """Without it the short way of most runs could differ from the one that all other tests look at."""
    trace, kinds = train(SingleDevice(), losses, **policies)
    expected, expected_kinds = train(OwnSync(), losses, **policies)
    assert kinds == {True, False}  # the last micro-batch is not full
    assert expected_kinds == {False}
    assert all(torch.equal(a, b) for a, b in zip(trace, expected, strict=True))
