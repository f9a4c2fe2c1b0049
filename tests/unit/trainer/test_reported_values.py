"""What is reported of a run: one point for each optimizer step, whatever it was cut into."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from drivetrain import Callback, SingleDevice, Trainer
from tests.unit.trainer.runs import QUIET, Classifier, Given, ListLogger, fit, loader, numbers


def test_a_window_of_four_losses_is_one_point_at_one_step() -> None:
    """The last micro-batch's loss would be shown as the step's, or four points be drawn."""
    logger = ListLogger()
    fit(Given(), numbers(1, 2, 3, 4), accumulate_grad_batches=4, logger=logger, log_every_n_steps=1)
    assert logger.rows == [(1, {"loss": 2.5, "epoch": 0})]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_the_reported_loss_does_not_depend_on_how_a_step_is_cut(size: int) -> None:
    """Two runs with equal steps could not be compared."""
    logger = ListLogger()
    values = [float(value) for value in range(12)]
    data = numbers(*values, batch_size=12 // size)
    fit(Given(), data, accumulate_grad_batches=size, logger=logger, log_every_n_steps=1)
    assert logger.of("loss") == [(1, 5.5)]


def test_a_ragged_batch_weighs_what_it_holds() -> None:
    """The last, short batch of a window would count as a full one."""
    logger = ListLogger()
    fit(Given(), numbers(0, 0, 0, 0, 10, batch_size=4), accumulate_grad_batches=2, logger=logger, log_every_n_steps=1)
    assert logger.of("loss") == [(1, 2.0)]


def test_a_weighted_loss_is_reported_with_its_weight() -> None:
    """The plot would show another mean than the one that is trained on."""

    class Weighted(Given):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return {"loss": super().training_step(batch, batch_idx), "weight": 1 + 2 * batch_idx}

    logger = ListLogger()
    fit(Weighted(), numbers(1, 5), accumulate_grad_batches=2, logger=logger, log_every_n_steps=1)
    assert logger.of("loss") == [(1, 4.0)]


@pytest.mark.parametrize("kind", [float, torch.tensor])
def test_a_micro_batch_without_weight_is_not_reported(kind: Any) -> None:
    """Its mean over nothing is nan: so would be what is reported of the whole window, though the step is right."""

    class Weighted(Given):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = batch[0].sum() / batch[0].sum() + self.weight
            self.log("loss", loss)
            self.log("number", 7.0, prog_bar=True)
            return {"loss": loss, "weight": kind(float(batch[0].sum()))}

    class Bar(Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            shown.append(trainer.metrics.bar_values()["number"])

    shown: list[float] = []
    logger = ListLogger()
    fit(
        Weighted(), numbers(0, 3, 4, 0), accumulate_grad_batches=2, logger=logger, log_every_n_steps=1,
        callbacks=[Bar()],
    )  # fmt: skip
    assert logger.of("loss") == [(1, 1.0), (2, pytest.approx(0.9))]
    assert shown[1:] == [7.0, 7.0, 7.0] and shown[0] != shown[0]


@pytest.mark.parametrize(("every", "steps"), [(1, [1, 2, 3, 4, 5, 6]), (2, [2, 4, 6]), (4, [4]), (7, [])])
def test_rows_are_counted_in_optimizer_steps(every: int, steps: list[int]) -> None:
    """`log_every_n_steps` would count micro-batches, or restart in each epoch."""
    logger = ListLogger()
    fit(
        Given(), numbers(*range(6)), accumulate_grad_batches=2, max_epochs=2, logger=logger, log_every_n_steps=every
    )  # fmt: skip
    assert [step for step, _ in logger.of("loss")] == steps


def test_values_of_an_epoch_are_written_at_its_last_step() -> None:
    """An epoch's mean would have a counter of its own, or miss the last batch."""

    class Both(Given):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = batch[0].mean() + 0.0 * self.weight
            self.log("loss", loss, on_epoch=True)
            return loss

        def on_train_epoch_end(self) -> None:
            self.log("epoch_number", float(self.current_epoch))

    logger = ListLogger()
    _, trainer = fit(Both(), numbers(1, 2, 6), max_epochs=2, logger=logger, log_every_n_steps=10)
    assert logger.rows == [
        (3, {"loss_epoch": 3.0, "epoch_number": 0.0, "epoch": 0}),
        (6, {"loss_epoch": 3.0, "epoch_number": 1.0, "epoch": 1}),
    ]
    assert trainer.logged_metrics == {"loss_epoch": 3.0, "epoch_number": 1.0}


def test_what_is_logged_in_hooks_of_validation_is_reported() -> None:
    """An accuracy over the whole validation is logged at its end."""

    class Hooked(Classifier):
        def on_validation_epoch_start(self) -> None:
            self.log("first", 1.0)

        def on_validation_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            self.log("batch", float(batch_idx))

        def on_validation_epoch_end(self) -> None:
            self.log("last", 2.0)

    _, trainer = fit(Hooked(), val_data=loader(12))
    found = {name: float(value) for name, value in trainer.callback_metrics.items()}
    assert {name: found[name] for name in ("first", "batch", "last")} == {"first": 1.0, "batch": 1.0, "last": 2.0}


def test_a_value_logged_before_the_optimizer_step_belongs_to_it() -> None:
    """The gradient norm of a step would be lost or be written one step late."""

    class Norms(Given):
        def on_before_optimizer_step(self, optimizer: Any) -> None:
            self.log("norm", float(self.global_step), on_epoch=True)

    logger = ListLogger()
    fit(Norms(), numbers(*range(4)), logger=logger, log_every_n_steps=1, accumulate_grad_batches=2)
    assert logger.of("norm_step") == [(1, 0.0), (2, 1.0)] and logger.of("norm_epoch") == [(2, 0.5)]


def test_a_value_logged_at_the_end_of_a_micro_batch_belongs_to_it() -> None:
    """What is known only after the optimizer step, a gradient norm or a throughput, could not be logged for it."""

    class Ends(Given):
        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            self.log("index", float(batch_idx), on_epoch=True)
            if batch_idx % 2:
                self.log("steps", float(self.global_step))

    logger = ListLogger()
    fit(Ends(), numbers(*range(4)), logger=logger, log_every_n_steps=1, accumulate_grad_batches=2)
    assert logger.of("index_step") == [(1, 0.5), (2, 2.5)] and logger.of("index_epoch") == [(2, 1.5)]
    assert logger.of("steps") == [(1, 1.0), (2, 2.0)]


def test_validation_metrics_are_there_when_the_epoch_ends() -> None:
    """A callback that watches `val_loss` would see that of the epoch before."""
    seen = []

    class Watch(Callback):
        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            seen.append(float(trainer.callback_metrics["val_loss"]))

        def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
            seen.append(float(trainer.callback_metrics["val_loss"]))

    fit(val_data=loader(), callbacks=[Watch()], max_epochs=2, num_sanity_val_steps=0)
    assert len(seen) == 4 and seen[0] == seen[1] != seen[2] == seen[3]


def test_validation_inside_an_epoch_leaves_the_epochs_sums() -> None:
    """The training loss of an epoch would be that since the last validation."""

    class Both(Classifier):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.log("number", float(batch_idx), on_step=False, on_epoch=True)
            return self.loss_of(batch)

    _, trainer = fit(Both(), loader(24), loader(8), val_check_interval=2)
    assert float(trainer.callback_metrics["number"]) == 2.5


def test_loggers_hear_of_hyperparameters_and_of_the_end() -> None:
    """A run could not be told from another; or the last rows stay in a buffer."""

    class Sized(Classifier):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.save_hyperparameters()

    logger = ListLogger()
    fit(Sized(3), logger=logger)
    assert logger.hparams == [{"width": 3}] and logger.statuses == ["success"]

    class Broken(Classifier):
        def on_train_start(self) -> None:
            raise KeyError("broken")

    broken = ListLogger()
    with pytest.raises(KeyError):
        fit(Broken(), logger=broken)
    assert broken.statuses == ["failed"]


def test_the_sanity_check_leaves_no_metrics() -> None:
    """A checkpoint would be judged by untrained weights."""
    found: list[Any] = []

    class Watch(Callback):
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            found.append(dict(trainer.callback_metrics))

    logger = ListLogger()
    module, _ = fit(
        val_data=loader(), callbacks=[Watch()], logger=logger, num_sanity_val_steps=2, limit_train_batches=1
    )  # fmt: skip
    assert found == [{}] and module.seen[:2] == [("validate", 0, 0), ("validate", 1, 0)]
    assert [step for step, _ in logger.of("val_loss")] == [1]


def test_log_outside_of_a_run_is_refused() -> None:
    """It would fail with an attribute that is None."""
    module, _ = fit()
    with pytest.raises(RuntimeError, match=r"Classifier\.log was used outside of a run"):
        module.log("x", torch.tensor(1.0))


def test_a_second_run_with_the_same_strategy_object_writes_too() -> None:
    """The strategy is open already, so that its loggers would take every value and write none."""
    strategy = SingleDevice()
    for _ in range(2):
        logger = ListLogger()
        fit(Given(), numbers(1, 2), strategy=strategy, logger=logger, log_every_n_steps=1)
        assert logger.of("loss") == [(1, 1.0), (2, 2.0)]
    strategy.close()


class Largest:
    """A metric object: the largest value."""

    def __init__(self) -> None:
        self.value, self.num_resets = 0.0, 0

    def reset(self) -> None:
        self.value, self.num_resets = 0.0, self.num_resets + 1

    def compute(self) -> float:
        return self.value


@pytest.mark.parametrize("stage", ["validation", "train"])
def test_values_of_an_epoch_are_there_when_its_end_is_heard(stage: str) -> None:
    """A hook would compare the epoch before, or, the first time, find nothing; and a metric object be reset by then."""

    class Logs(Given):
        def __init__(self) -> None:
            super().__init__()
            self.largest = Largest()

        def note(self, batch: Any) -> None:
            value = float(batch[0]) + 10 * self.current_epoch
            self.largest.value = max(self.largest.value, value)
            self.log("mean", value, on_step=False, on_epoch=True)
            self.log("largest", self.largest, on_step=False, on_epoch=True)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if stage == "train":
                self.note(batch)
            return super().training_step(batch, batch_idx)

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            if stage == "validation":
                self.note(batch)

    class Look(Callback):
        def note(self, trainer: Any, pl_module: Any) -> None:
            if not trainer.sanity_checking:
                found = trainer.callback_metrics
                seen.append((float(found["mean"]), float(found["largest"]), pl_module.largest.value))

    setattr(Look, f"on_{stage}_epoch_end", Look.note)
    seen: list[tuple[float, float, float]] = []
    logger = ListLogger()
    module, _ = fit(
        Logs(), numbers(1, 2, 6), numbers(1, 2, 6), callbacks=[Look()], max_epochs=2, logger=logger,
        num_sanity_val_steps=0,
    )  # fmt: skip
    assert seen == [(3.0, 6.0, 6.0), (13.0, 16.0, 16.0)]
    assert [value for _, value in logger.of("largest")] == [6.0, 16.0]
    assert module.largest.value == 0.0 and module.largest.num_resets == 2


def test_what_a_hook_logs_again_at_the_end_of_an_evaluation_is_what_is_reported() -> None:
    """The loggers, or what `validate` returns, would have the mean of the steps."""

    class Logs(Given):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("mean", float(batch[0]))
            self.log("kept", float(batch[0]))

        def on_validation_epoch_end(self) -> None:
            self.log("mean", -self.trainer.callback_metrics["mean"])

    logger = ListLogger()
    trainer = Trainer(**{**QUIET, "logger": logger})
    assert trainer.validate(Logs(), numbers(1, 3), verbose=False) == [{"mean": -2.0, "kept": 2.0}]
    assert logger.of("mean") == [(0, -2.0)] and logger.of("kept") == [(0, 2.0)]
