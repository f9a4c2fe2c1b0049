"""Several loaders are read as one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from drivetrain import CombinedLoader, DataError, Trainer
from tests.unit.trainer.runs import QUIET, Classifier, Given, ListLogger, are_equal, fit, loader, numbers, weights

THREE, FIVE = [1.0, 2.0, 3.0], [10.0, 20.0, 30.0, 40.0, 50.0]


def counted(values: list[float], *, batch_size: int = 1, shuffle: bool = False) -> DataLoader[Any]:
    data = TensorDataset(torch.tensor(values, dtype=torch.float64))
    return DataLoader(data, batch_size=batch_size, shuffle=shuffle)


class Pairs(Given):
    """Notes what it is trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.seen.append({name: None if part is None else part[0].tolist() for name, part in batch.items()})
        return self.weight.square()


ROWS = {
    "min_size": [(1, 10), (2, 20), (3, 30)],
    "max_size": [(1, 10), (2, 20), (3, 30), (None, 40), (None, 50)],
    "max_size_cycle": [(1, 10), (2, 20), (3, 30), (1, 40), (2, 50)],
}


@pytest.mark.parametrize("mode", ROWS)
def test_a_run_reads_loaders_side_by_side(mode: str) -> None:
    """A script with a labelled and an unlabelled loader could not be trained, or end with the wrong one."""
    combined = CombinedLoader({"a": counted(THREE), "b": counted(FIVE)}, mode)
    module, trainer = fit(Pairs(), combined)
    rows = [(one["a"] and one["a"][0], one["b"][0]) for one in module.seen]
    assert rows == ROWS[mode] and trainer.num_training_batches == len(rows) == len(combined)
    assert trainer.train_dataloader is combined
    outside = [(batch, index, which) for batch, index, which in combined]
    assert [index for _, index, _ in outside] == list(range(len(rows))) and {which for *_, which in outside} == {0}


def test_loaders_one_after_another_are_one_epoch() -> None:
    """They would be read side by side, or one of them alone."""
    combined = CombinedLoader([counted(THREE), counted(FIVE)], "sequential")
    seen: list[float] = []

    class Notes(Given):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            seen.append(float(batch[0]))
            return self.weight.square()

    fit(Notes(), combined)
    assert seen == [*THREE, *FIVE] and len(combined) == 8
    assert [(index, which) for _, index, which in combined] == [(0, 0), (1, 0), (2, 0)] + [(n, 1) for n in range(5)]


def test_a_structure_of_loaders_is_the_structure_of_a_batch() -> None:
    """A step that unpacks its batches would find others."""
    combined = CombinedLoader([counted(THREE), {"x": counted(FIVE), "y": (counted(THREE),)}])
    first, _, _ = next(iter(combined))
    assert float(first[0][0]) == float(first[1]["y"][0][0]) == 1.0 and float(first[1]["x"][0]) == 10.0


@pytest.mark.parametrize("given", [{"a": counted(THREE), "b": counted(FIVE)}, [counted(THREE), counted(FIVE)]], ids=str)
def test_several_loaders_of_training_need_no_name(given: Any) -> None:
    """A data module that returns a dict of loaders elsewhere would be refused."""

    class Counts(Given):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            assert type(batch) is type(given)
            return self.weight.square()

    _, trainer = fit(Counts(), given)
    assert trainer.global_step == 5


def test_an_evaluation_reads_them_as_they_say() -> None:
    """A sequence would be one loader, whose values are pooled; a dict be refused."""
    parts = [numbers(1, 3), numbers(5)]

    class Means(Given):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            one = batch["a"] if isinstance(batch, dict) else batch
            self.log("mean", one[0].mean())

    trainer = Trainer(**QUIET)
    expected = [{"mean/dataloader_idx_0": 2.0}, {"mean/dataloader_idx_1": 5.0}]
    assert trainer.validate(Means(), CombinedLoader(parts, "sequential"), verbose=False) == expected
    assert trainer.validate(Means(), {"a": parts[0], "b": parts[1]}, verbose=False) == expected
    both = CombinedLoader({"a": parts[0], "b": parts[1]}, "max_size")
    assert trainer.validate(Means(), both, verbose=False) == [{"mean": 2.0}]


def test_loaders_of_equal_lengths_are_shuffled_apart_and_alike_in_each_run() -> None:
    """Each sample would always meet the same other one; or a run not be repeated."""

    def pairs(epochs: int) -> list[Any]:
        both = {"a": counted(list(range(64)), batch_size=8, shuffle=True)}
        both["b"] = counted(list(range(64)), batch_size=8, shuffle=True)
        torch.manual_seed(5)
        return fit(Pairs(), CombinedLoader(both), max_epochs=epochs)[0].seen

    two = pairs(2)
    assert two == pairs(2)
    assert all(row["a"] != row["b"] for row in two)
    assert sorted(one for row in two[:8] for one in row["a"]) == list(range(64)) and two[:8] != two[8:]


@pytest.mark.filterwarnings("ignore:The loader cannot begin in the middle")
def test_a_run_that_is_stopped_inside_of_an_epoch_goes_on_with_the_next_batches(tmp_path: Any) -> None:
    """It would read other pairs than the run that was not stopped."""

    def data() -> CombinedLoader:
        both = {"a": loader(12, shuffle=True), "b": loader(20, shuffle=True)}
        return CombinedLoader(both, "max_size_cycle")

    class Both(Classifier):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.loss_of(batch["a"]) + self.loss_of(batch["b"])

    torch.manual_seed(1)
    whole, _ = fit(Both(), data(), max_epochs=2)
    torch.manual_seed(1)
    part, first = fit(Both(), data(), max_epochs=2, max_steps=7)
    first.save_checkpoint(tmp_path / "ck")
    torch.manual_seed(2)
    again = Both()
    Trainer(**QUIET, max_epochs=2).fit(again, data(), ckpt_path=tmp_path / "ck")
    assert are_equal(weights(again), weights(whole)) and not are_equal(weights(part), weights(whole))


def test_what_cannot_be_combined_is_refused() -> None:
    """An epoch would be empty, or end with a TypeError of our code."""
    for make in (lambda: CombinedLoader([]), lambda: CombinedLoader([counted(THREE)], "longest")):
        with pytest.raises(DataError) as caught:
            make()
        assert caught.value.code == "combined-loaders"
    with pytest.raises(DataError) as caught:
        fit(Given(), CombinedLoader({"a": counted(THREE), "b": "text"}))
    assert caught.value.code == "not-a-loader"


def test_ranks_read_each_pair_once(ranks: Any) -> None:
    """Each rank would be trained on all of the data."""
    alone = train_pairs(1)
    results = ranks.run(train_pairs, 2, world=2)
    for result in results:
        assert max((result["weights"][n] - v).abs().max().item() for n, v in alone["weights"].items()) < 1e-10
        assert result["steps"] == alone["steps"] == 6 and result["loss"] == pytest.approx(alone["loss"])


def train_pairs(world: int) -> dict[str, Any]:
    """In each rank."""

    class Both(Classifier):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.loss_of(batch["a"]) + self.loss_of(batch["b"])

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("val_loss", self.loss_of(batch["a"]) + self.loss_of(batch["b"]))

    def data() -> CombinedLoader:
        return CombinedLoader({name: loader(48, batch_size=16 // world) for name in "ab"})

    torch.manual_seed(3)
    module, logger = Both(), ListLogger()
    trainer = Trainer(
        **{**QUIET, "logger": logger}, max_epochs=2, devices=world, strategy="ddp" if world > 1 else "auto"
    )
    trainer.fit(module, data(), data())
    result = {"weights": weights(module), "steps": trainer.global_step}
    return {**result, "loss": float(trainer.callback_metrics["val_loss"])}
