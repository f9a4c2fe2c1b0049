"""Evaluation and logged values on several ranks are those of one process; decisions are everybody's."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.utils.data import DataLoader

import drivetrain
from drivetrain.testing.comm_counter import CommCounter
from drivetrain.testing.fixtures import NumberedDataset, make_mlp
from tests.ranks.open_fabric import largest_difference, weights


class Scored(drivetrain.Module):
    """Logs losses of evaluation and notes which samples it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.net = make_mlp(has_batch_norm=True)
        self.seen: list[int] = []
        self.sent = 0

    def losses(self, batch: Any) -> torch.Tensor:
        features, targets, numbers = batch
        self.seen += numbers.tolist()
        return functional.cross_entropy(self.net(features), targets, reduction="none")

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        with CommCounter() as counter:
            losses = self.losses(batch)
            self.log("loss", losses.mean())
            self.log("count", float(len(losses)), reduce_fx="sum")
            self.log("largest", losses.max(), reduce_fx="max")
            self.log("smallest", losses.min(), reduce_fx="min")
        self.sent += counter.num_calls()

    test_step = validation_step

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        return batch[2].tolist()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.losses(batch).mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def make_trainer(**options: Any) -> drivetrain.Trainer:
    """A trainer with nothing beside it."""
    return drivetrain.Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, **options,
    )  # fmt: skip


def evaluate(stage: str, sizes: list[int], batch_size: int = 2, **options: Any) -> Any:
    """Results and what was seen for loaders of several sizes, one run after another."""
    module = Scored()
    trainer = make_trainer(**options)
    found = []
    for size in sizes:
        module.seen = []
        (result,) = getattr(trainer, stage)(
            module, DataLoader(NumberedDataset(size), batch_size=batch_size), verbose=False
        )
        found.append((result, module.seen))
    trainer._fabric.close()
    return found, module.sent


SIZES = [*range(1, 10)]


@pytest.mark.parametrize("stage", ["validate", "test"])
@pytest.mark.parametrize("batch_size", [1, 2, 4])
def test_each_sample_is_evaluated_once_and_metrics_are_those_of_one_process(
    ranks: Any, stage: str, batch_size: int
) -> None:
    """Numbers would depend on how many ranks computed them; ranks without data would hang or be asked for some."""
    alone, _ = evaluate(stage, SIZES, batch_size)
    (first, sent), (second, other_sent) = ranks.run(_evaluate_on_ranks, stage, SIZES, batch_size)
    assert sent == other_sent == 0
    for size, (result, _), (own, seen), (other, other_seen) in zip(SIZES, alone, first, second, strict=True):
        assert sorted(seen + other_seen) == [*range(size)]
        assert own == other == pytest.approx(result, rel=1e-12)
        assert own["count"] == size


def _evaluate_on_ranks(stage: str, sizes: list[int], batch_size: int) -> Any:
    return evaluate(stage, sizes, batch_size, strategy="ddp")


def test_more_ranks_than_samples_evaluate_them_once(ranks: Any) -> None:
    """Idle ranks would evaluate copies, or wait for a collective that the others never make."""
    results = ranks.run(_evaluate_on_ranks, "validate", [1, 2, 3], 4, world=4)
    alone, _ = evaluate("validate", [1, 2, 3], 4)
    for index, size in enumerate([1, 2, 3]):
        assert sorted(number for found, _ in results for number in found[index][1]) == [*range(size)]
        assert all(found[index][0] == pytest.approx(alone[index][0], rel=1e-12) for found, _ in results)


def test_ranks_without_samples_know_the_metrics_too(ranks: Any) -> None:
    """An early stop or the best checkpoint would be decided on one rank alone."""

    def in_rank() -> Any:
        trainer = make_trainer(strategy="ddp")
        trainer.validate(Scored(), DataLoader(NumberedDataset(1), batch_size=2), verbose=False)
        trainer._fabric.close()
        return {name: float(value) for name, value in trainer.callback_metrics.items()}

    first, second = ranks.run(in_rank)
    assert first == second
    assert set(first) == {"loss", "count", "largest", "smallest"}


def test_predictions_of_all_ranks_together_are_those_of_one_process(ranks: Any) -> None:
    """Samples would be predicted twice, or be missing."""

    def in_rank() -> Any:
        trainer = make_trainer(strategy="ddp")
        predictions = trainer.predict(Scored(), DataLoader(NumberedDataset(7), batch_size=2))
        trainer._fabric.close()
        return predictions

    flat = [number for result in ranks.run(in_rank) for batch in result for number in batch]
    assert sorted(flat) == [*range(7)]


def test_validation_within_training_does_not_move_the_model(ranks: Any) -> None:
    """Ranks would train on as another model than one process, after the first validation with few samples."""

    def in_rank(has_validation: bool) -> Any:
        module = Scored()
        trainer = make_trainer(strategy="ddp", max_epochs=2, val_check_interval=3)
        loader = DataLoader(NumberedDataset(24), batch_size=2)
        trainer.fit(module, loader, DataLoader(NumberedDataset(1), batch_size=2) if has_validation else None)
        trainer._fabric.close()
        return {name: value for name, value in weights(module).items() if "running" not in name}

    with_it = ranks.run(in_rank, True)
    without = ranks.run(in_rank, False)
    for own in with_it:
        assert largest_difference(own, without[0]) == 0


# ---------------------------------------------------------------- decisions


class Stops(drivetrain.Module):
    """Wants to stop at one step, on one rank alone."""

    def __init__(self, *, rank: int, step: int, where: str) -> None:
        super().__init__()
        self.net = make_mlp()
        self.place = (where, rank, step)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self._maybe("training_step")
        return functional.cross_entropy(self.net(batch[0]), batch[1])

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._maybe("on_train_batch_end")

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self._maybe("validation_step")

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def _maybe(self, where: str) -> None:
        if self.place == (where, self.global_rank, self.global_step):
            self.trainer.should_stop = True


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    ("where", "step", "expected"),
    [("training_step", 4, {5}), ("on_train_batch_end", 3, {3, 4}), ("validation_step", 4, {4})],
)
def test_one_rank_that_wants_to_stop_stops_all_at_the_same_step(
    ranks: Any, rank: int, where: str, step: int, expected: set[int]
) -> None:
    """The others would wait for it in the next sync."""

    def in_rank() -> int:
        trainer = make_trainer(strategy="ddp", max_epochs=3, accumulate_grad_batches=2, val_check_interval=4)
        loader = DataLoader(NumberedDataset(48), batch_size=2)
        trainer.fit(Stops(rank=rank, step=step, where=where), loader, loader if where == "validation_step" else None)
        trainer._fabric.close()
        return trainer.global_step

    first, second = ranks.run(in_rank)
    assert first == second
    assert first in expected


# ---------------------------------------------------------------- logged values


class Logs(drivetrain.Module):
    """Logs numbers that the test makes up; which samples hold which is known."""

    def __init__(self) -> None:
        super().__init__()
        self.net = make_mlp()
        self.steps: list[dict[str, float]] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        numbers = batch[2].double()
        self.log("number", numbers.mean(), on_step=True, on_epoch=True)
        self.log("tokens", numbers.mean(), on_epoch=True, batch_size=int(numbers.sum()))
        self.log("own", float(self.global_rank + 1), on_epoch=True, sync_dist=False)
        self.log_dict({"highest": numbers.max()}, reduce_fx="max", on_epoch=True)
        if self.global_rank == 1:
            self.log("only_on_rank_1", 5.0, on_epoch=True)
        return functional.cross_entropy(self.net(batch[0]), batch[1])

    def on_train_epoch_end(self) -> None:
        self.steps.append({name: float(value) for name, value in self.trainer.callback_metrics.items()})

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_logged_means_are_pooled_over_samples_ranks_and_micro_batches(ranks: Any) -> None:
    """Each rank's or batch's mean would count the same, however many samples it holds."""

    def in_rank() -> Any:
        module = Logs()
        trainer = make_trainer(strategy="ddp", max_epochs=1, accumulate_grad_batches=2, log_every_n_steps=1)
        trainer.fit(module, DataLoader(NumberedDataset(11), batch_size=2))
        trainer._fabric.close()
        return {name: float(value) for name, value in trainer.callback_metrics.items()}

    first, second = ranks.run(in_rank)
    assert first == second
    pairs = [[*range(start, min(start + 2, 11))] for start in range(0, 11, 2)]
    assert first["number_epoch"] == pytest.approx(5.0)
    assert first["number_step"] == pytest.approx((8 + 9 + 10) / 3)
    assert first["tokens_epoch"] == pytest.approx(sum(sum(p) * sum(p) / len(p) for p in pairs) / sum(range(11)))
    assert first["own_epoch"] == 1.0
    assert first["highest_epoch"] == 10.0
    assert first["only_on_rank_1_epoch"] == 5.0


def _print_after_a_run() -> tuple[int, str]:
    module, out = Scored(), io.StringIO()
    make_trainer(devices=2, max_steps=1).fit(module, DataLoader(NumberedDataset(4), batch_size=2))
    module.print("trained", file=out)
    return module.global_rank, out.getvalue()


def test_a_module_prints_on_one_rank_after_a_run_too(ranks: Any) -> None:
    """What a program prints of its model at the end would be there once for each rank."""
    assert ranks.run(_print_after_a_run, world=2) == [(0, "trained\n"), (1, "")]
