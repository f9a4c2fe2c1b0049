"""Monitors of several ranks: who is slow, and whose values are inf or nan."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

from drivetrain import Callback, NonFiniteMonitor, StragglerMonitor
from tests.unit.trainer.runs import Classifier, ListLogger, fit, loader


class SlowRank(Callback):
    """A clock on which one rank takes three seconds for what takes others one; all meet then."""

    def __init__(self, slow: int) -> None:
        self.slow, self.now = slow, 0.0

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.now += 3.0 if trainer.global_rank == self.slow else 1.0

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        self.now += 1.0 if trainer.global_rank == self.slow else 3.0  # waiting

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.now += 50.0 if trainer.global_rank != self.slow else 0.0


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_the_rank_that_makes_the_others_wait_is_named(ranks: Any, strategy: str) -> None:
    """All ranks would look equally slow, since they wait for each other; or validation would count."""

    def in_rank() -> tuple[int | None, list[float], list[Any], str]:
        clock, logger, said = SlowRank(1), ListLogger(), []
        handler = logging.Handler()
        handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("drivetrain.callbacks").addHandler(handler)
        monitor = StragglerMonitor("2 steps", clock=lambda: clock.now)
        try:
            _, trainer = fit(
                data=loader(48), val_data=loader(8), val_check_interval=3, strategy=strategy, logger=logger,
                callbacks=[clock, monitor],
            )  # fmt: skip
            trainer._fabric.close()
        finally:
            logging.getLogger("drivetrain.callbacks").removeHandler(handler)
        return monitor.slowest, monitor.own_s, logger.of("straggler/rank"), "; ".join(said)

    left, right = ranks.run(in_rank)
    assert left[:2] == right[:2] == (1, [1.0, 3.0])
    assert left[2] == [(2, 1.0), (4, 1.0), (6, 1.0)] and right[2] == []
    assert left[3].count("Rank 1 makes the others wait: a step of 4.0 s") == 0  # in milliseconds
    assert left[3].count("Rank 1 makes the others wait: a step of 4000.0 ms has 3000.0 ms before its sync there") == 3
    assert right[3] == ""


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_loss_of_one_rank_is_heard_of_by_all(ranks: Any, strategy: str) -> None:
    """Rank 0 would report a good run."""

    class BadOnOne(Classifier):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = self.loss_of(batch)
            return loss * float("nan") if self.trainer.global_rank == 1 and batch_idx == 2 else loss

    def in_rank() -> tuple[int, int, int | None]:
        torch.manual_seed(0)
        monitor = NonFiniteMonitor()
        _, trainer = fit(
            BadOnOne(), loader(32), strategy=strategy, callbacks=[monitor], log_every_n_steps=2, max_steps=3
        )
        trainer._fabric.close()
        return monitor.num_losses, monitor.num_steps, monitor.first_step

    assert set(ranks.run(in_rank)) == {(1, 1, 3)}
