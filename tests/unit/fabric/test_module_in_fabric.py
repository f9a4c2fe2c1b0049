"""A `drivetrain.Module` in a raw loop knows the fabric that has set it up."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import nn

from drivetrain import Fabric, LoggingError, Module, NotOpenError, Trainer
from drivetrain.loggers.logger import Logger
from tests.unit.trainer.runs import QUIET, loader


class Rows(Logger):
    """Keeps what is written."""

    name = "rows"  # type: ignore[assignment]

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        if self.is_writing:
            self.rows.append(dict(metrics))

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        pass


class Lit(Module):
    """Logs in its step."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4).double()
        self.seen: list[Any] = []

    def training_step(self, batch: Any, batch_idx: int = 0) -> Any:
        self.seen.append(self.fabric)
        loss = self.layer(batch[0]).square().mean()
        self.log("loss", loss, prog_bar=True, on_epoch=True)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.fixture
def rows() -> Rows:
    return Rows()


@pytest.fixture
def fabric(rows: Rows) -> Any:
    fabric = Fabric(accelerator="cpu", devices=1, loggers=rows)
    yield fabric
    fabric.close()


BATCH = (torch.ones(2, 8, dtype=torch.float64),)


def test_a_module_knows_its_fabric_until_that_is_closed(fabric: Fabric) -> None:
    """A step that asks for it would end with an AttributeError, or talk to ranks that are gone."""
    module = Lit()
    assert module.fabric is None
    model = fabric.setup(module)
    assert module.fabric is fabric is model.fabric
    assert copy.deepcopy(module).fabric is None and pickle.loads(pickle.dumps(module)).fabric is None
    fabric.close()
    assert module.fabric is None and module.global_rank == 0
    with fabric.trial():
        fabric.setup(module)
        assert module.fabric is fabric
    assert module.fabric is None


def test_values_go_to_the_loggers_of_the_fabric(fabric: Fabric, rows: Rows) -> None:
    """A module that is trained in a raw loop would log nothing, or fail."""
    module = Lit()
    loss = fabric.setup(module).training_step(BATCH)
    assert rows.rows == [{"loss": pytest.approx(float(loss.detach()))}]
    module.log("unwritten", 1.0, logger=False)
    module.log_dict({"unwritten": 1.0}, logger=False)
    module.log_dict({"a": torch.tensor(1.5), "b": 2}, sync_dist=True)
    assert rows.rows[1:] == [{"a": 1.5, "b": 2.0}]
    assert module.loggers == [rows] and module.logger is rows
    with pytest.raises(TypeError):
        module.log_dict({"a": 1.0}, no_such_option=1)
    for value in (torch.ones(2), "text", object()):
        with pytest.raises(LoggingError) as caught:
            module.log("a", value)
        assert caught.value.code == "log-value"


def test_without_loggers_nothing_is_written_and_outside_of_both_it_is_an_error() -> None:
    """A step would fail in a loop that wants no values, or lose them without a word."""
    module = Lit()
    for is_written in (None, False):
        with pytest.raises(NotOpenError):
            module.log("a", 1.0, logger=is_written)
        with pytest.raises(NotOpenError):
            module.log_dict({"a": 1.0}, logger=is_written)
    with pytest.raises(NotOpenError):
        module.all_gather(torch.ones(1))
    bare = Fabric(accelerator="cpu", devices=1)
    bare.setup(module)
    module.log("a", 1.0)
    bare.close()


def test_what_a_module_uses_of_itself_goes_through_the_fabric(
    fabric: Fabric, capsys: pytest.CaptureFixture[str]
) -> None:
    """A step that prints, gathers or runs backward itself would need a trainer."""
    module = Lit()
    model = fabric.setup(module)
    module.print("hello")
    assert capsys.readouterr().out == "hello\n"
    assert module.all_gather(torch.ones(3)).shape == (1, 3)
    assert (module.global_rank, module.local_rank, module.device) == (0, 0, fabric.device)
    assert module.device_mesh is None
    module.manual_backward(model.training_step(BATCH))
    assert module.layer.weight.grad is not None


def test_in_a_run_of_a_trainer_there_is_none(fabric: Fabric) -> None:
    """A module that asks which of the two it has would take the trainer's for a raw loop."""
    module = Lit()
    fabric.setup(module)  # as it was used before
    trainer = Trainer(**QUIET, max_epochs=1)
    trainer.fit(module, loader(8))
    assert set(module.seen) == {None}
    other = Lit()
    trainer = Trainer(**QUIET, max_epochs=1)
    trainer.fit(other, loader(8))
    assert other.fabric is None and other._fabric is None
