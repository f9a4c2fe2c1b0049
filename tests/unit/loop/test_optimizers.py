"""What `configure_optimizers` may return."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR

from drivetrain import OptimizerError
from drivetrain.loop.optimizers import LRSchedulerConfig, read_configuration

NET = nn.Linear(2, 2)
A = SGD(NET.parameters(), lr=0.1)
B = Adam([NET.weight], lr=0.1)
SA = StepLR(A, 1)
SB = StepLR(B, 1)
PLATEAU = ReduceLROnPlateau(A)


@pytest.mark.parametrize(
    ("configured", "optimizers", "schedulers"),
    [
        (A, [A], []),
        ([A], [A], []),
        ((A, B), [A, B], []),
        ([A, B], [A, B], []),
        ({"optimizer": A}, [A], []),
        ({"optimizer": A, "lr_scheduler": SA}, [A], [(SA, "epoch", 1)]),
        ({"optimizer": A, "lr_scheduler": None}, [A], []),
        ({"optimizer": A, "lr_scheduler": {"scheduler": SA, "interval": "step"}}, [A], [(SA, "step", 1)]),
        ({"optimizer": A, "lr_scheduler": {"scheduler": SA, "frequency": 3}}, [A], [(SA, "epoch", 3)]),
        ([{"optimizer": A, "lr_scheduler": SA}, {"optimizer": B}], [A, B], [(SA, "epoch", 1)]),
        (([A], [SA]), [A], [(SA, "epoch", 1)]),
        ([[A, B], [SA, {"scheduler": SB, "interval": "step"}]], [A, B], [(SA, "epoch", 1), (SB, "step", 1)]),
        (([A, B], []), [A, B], []),
    ],
)
def test_every_familiar_shape_is_read(
    configured: Any, optimizers: list[Optimizer], schedulers: list[tuple[Any, str, int]]
) -> None:
    """An optimizer or a scheduler would be forgotten."""
    found, configs = read_configuration(configured, NET)
    assert [id(one) for one in found] == [id(one) for one in optimizers]
    assert [(one.scheduler, one.interval, one.frequency) for one in configs] == schedulers


@pytest.mark.parametrize(
    "configured",
    [
        {"optimizer": A, "lr_scheduler": PLATEAU, "monitor": "val_loss"},
        {"optimizer": A, "lr_scheduler": {"scheduler": PLATEAU, "monitor": "val_loss"}},
        ([A], [{"scheduler": PLATEAU, "monitor": "val_loss"}]),
    ],
)
def test_a_plateau_scheduler_knows_what_it_watches(configured: Any) -> None:
    """It would be stepped without a value."""
    (config,) = read_configuration(configured, NET)[1]
    assert config.reduce_on_plateau and config.monitor == "val_loss"


def test_none_trains_nothing_and_says_so() -> None:
    """A forgotten `return` would train nothing, for days."""
    with pytest.warns(UserWarning, match="configure_optimizers returned None"):
        assert read_configuration(None, NET) == ([], [])


BAD: list[tuple[Callable[[], Any], str, str]] = [
    (lambda: "sgd", "configure-optimizers", "a str in the place of an optimizer"),
    (lambda: [A, 3], "configure-optimizers", "a int in the place"),
    (lambda: {"optimiser": A}, "configure-optimizers", "the keys ['optimiser']"),
    (lambda: {"optimizer": A, "scheduler": SA}, "configure-optimizers", "['optimizer', 'scheduler']"),
    (lambda: SGD(nn.Linear(2, 2).parameters(), lr=1), "optimizer-parameters", "SGD holds 2 of 2"),
    (lambda: {"optimizer": A, "lr_scheduler": {"scheduler": SA, "every": 2}}, "scheduler", "'every'"),
    (lambda: {"optimizer": A, "lr_scheduler": {"interval": "step"}}, "scheduler", "It needs 'scheduler'"),
    (lambda: {"optimizer": A, "lr_scheduler": {"scheduler": SA, "interval": "batch"}}, "scheduler", "'batch'"),
    (lambda: {"optimizer": A, "lr_scheduler": {"scheduler": SA, "frequency": 0}}, "scheduler", "frequency=0"),
    (lambda: {"optimizer": A, "lr_scheduler": {"scheduler": SA, "interval": "5 s"}}, "scheduler", "'5 s'"),
    (lambda: {"optimizer": A, "lr_scheduler": {"scheduler": SA, "interval": 5}}, "scheduler", "interval=5"),
    (lambda: {"optimizer": A, "lr_scheduler": {"scheduler": SA, "interval": "0.5 steps"}}, "scheduler", "'0.5 steps'"),
    (lambda: {"optimizer": A, "lr_scheduler": PLATEAU}, "scheduler-monitor", "no 'monitor'"),
    (lambda: {"optimizer": A, "lr_scheduler": SB}, "scheduler", "StepLR schedules an optimizer"),
]


@pytest.mark.parametrize(("make", "code", "text"), BAD, ids=[text for _, _, text in BAD])
def test_what_cannot_be_read_is_refused(make: Callable[[], Any], code: str, text: str) -> None:
    """It would train with half of what was configured."""
    with pytest.raises(OptimizerError) as caught:
        read_configuration(make(), NET)
    assert caught.value.code == code and text in str(caught.value)


def test_a_plateau_scheduler_gets_its_value() -> None:
    """It would lower the rate at the wrong time."""
    optimizer = SGD(NET.parameters(), lr=1.0)
    config = LRSchedulerConfig(ReduceLROnPlateau(optimizer, patience=0), monitor="x", reduce_on_plateau=True)
    for value in (1.0, 0.5, 0.7):
        config.advance({"x": torch.tensor(value)})
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1)


def test_a_value_that_was_not_logged_is_an_error_or_said() -> None:
    """The rate would stay as it is, without a word."""
    config = LRSchedulerConfig(PLATEAU, monitor="val_los", reduce_on_plateau=True)
    with pytest.raises(
        OptimizerError, match=r"monitors 'val_los', which was not logged; logged are \['val_loss'\]"
    ) as caught:
        config.advance({"val_loss": 1.0})
    assert caught.value.code == "scheduler-monitor"
    config.strict = False
    with pytest.warns(UserWarning, match="which was not logged"):
        config.advance({})
