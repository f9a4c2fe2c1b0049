"""Strategies whose ranks step apart: what is evaluated, what is saved, and how a run goes on from it."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader

import drivetrain
from drivetrain import DDP, DiLoCo, LocalSGD, SingleDevice
from drivetrain.checkpoint.read import read_tensors
from drivetrain.cluster.read_cluster import current_cluster
from drivetrain.strategies.local_round import round_of
from drivetrain.testing.fixtures import NumberedDataset, make_mlp
from tests.ranks.open_fabric import largest_difference, open_fabric, weights
from tests.ranks.test_local_sgd import adamw, batches


class Classifier(drivetrain.Module):
    """Notes the weights that are evaluated, and saves in the middle of an evaluation."""

    def __init__(self, save_at: int | None = None, path: str = "", *, dropout: float = 0.1) -> None:
        super().__init__()
        self.net = make_mlp(dropout=dropout, has_batch_norm=True)
        self.save_at, self.path = save_at, path
        self.evaluated: list[tuple[int, dict[str, Tensor]]] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return functional.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", functional.cross_entropy(self.net(batch[0]), batch[1]))

    def on_validation_end(self) -> None:
        self.evaluated.append((self.global_step, weights(self)))
        if self.global_step == self.save_at:
            self.trainer.save_checkpoint(self.path)

    def configure_optimizers(self) -> Any:
        optimizer = adamw(self)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def fit(strategy: Any, module: Classifier, *, validates: bool = True, **options: Any) -> dict[str, Any]:
    """Nine steps, with a validation after every second one; what is left at the end."""
    drivetrain.seed_everything(3, verbose=False)
    ckpt_path = options.pop("ckpt_path", None)
    world = current_cluster().world_size
    trainer = drivetrain.Trainer(
        accelerator="cpu", devices=world, strategy=strategy, max_steps=9, val_check_interval=2, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
        limit_val_batches=None if validates else 0, **options,
    )  # fmt: skip
    data = NumberedDataset(24 * world)
    trainer.fit(
        module, DataLoader(data, batch_size=4, shuffle=True), DataLoader(data, batch_size=8), ckpt_path=ckpt_path
    )
    left = {
        "agreed": weights(module),
        "parameters": [name for name, _ in module.named_parameters()],
        "evaluated": module.evaluated,
        "metric": trainer.callback_metrics.get("val_loss"),
    }
    run_round = round_of(trainer.run.prepared)
    run_round.show_own()
    left.update(own=weights(module), optimizer=trainer.optimizers[0].state_dict()["state"])
    left.update(
        lr=trainer.optimizers[0].param_groups[0]["lr"], steps=run_round.num_steps, shared=run_round.state_dict()
    )
    left["scaler"] = trainer.run.scaler_state()
    trainer._fabric.close()
    return left


MAKE = pytest.mark.parametrize("make", [LocalSGD, DiLoCo])


@MAKE
def test_a_run_that_stopped_inside_a_round_goes_on_bit_for_bit(ranks: Any, make: Any, tmp_path: Path) -> None:
    """A rank would begin with the parameters, the moments or the anchor of another, or sync at another step."""

    def whole(path: str) -> Any:
        return fit(make(4), Classifier(save_at=6, path=path))

    def resumed(path: str) -> Any:
        return fit(make(4), Classifier(), ckpt_path=path)

    path = str(tmp_path / "middle.ckpt")
    before = ranks.run(whole, path)
    after = ranks.run(resumed, path)
    check_ended(*after)
    for left, right in zip(before, after, strict=True):
        assert (left["steps"], left["lr"]) == (right["steps"], right["lr"]) and left["steps"] == 1
        for name in ("own", "agreed"):
            assert largest_difference(left[name], right[name]) == 0
        for index, state in left["optimizer"].items():
            assert all(torch.equal(value, right["optimizer"][index][name]) for name, value in state.items())
        anchors = (left["shared"].get("anchor", []), right["shared"].get("anchor", []))
        assert all(torch.equal(a, b) for a, b in zip(*anchors, strict=True))


@MAKE
def test_what_is_evaluated_is_one_model_and_changes_no_step(ranks: Any, make: Any) -> None:
    """Each rank would evaluate its own model, or training depend on how often it is validated."""
    with_validation = ranks.run(lambda: fit(make(4), Classifier(dropout=0.0)))
    without = ranks.run(lambda: fit(make(4), Classifier(dropout=0.0), validates=False))
    first, second = with_validation
    assert [step for step, _ in first["evaluated"]] == [2, 4, 6, 8]
    for (_, one), (_, other) in zip(first["evaluated"], second["evaluated"], strict=True):
        assert largest_difference(one, other) == 0
    assert float(first["metric"]) == float(second["metric"])
    for left, right in zip(with_validation, without, strict=True):
        assert all(torch.equal(left["own"][name], right["own"][name]) for name in left["parameters"])
    check_ended(first, second)


def check_ended(first: dict[str, Any], second: dict[str, Any]) -> None:
    """All ranks hold the mean of their parameters, and rank 0's buffers."""
    assert largest_difference(first["agreed"], second["agreed"]) == 0
    assert largest_difference(first["own"], second["own"]) > 0
    for name in first["parameters"]:
        mean = (first["own"][name] + second["own"][name]) / 2
        assert torch.allclose(first["agreed"][name], mean, atol=1e-15)
    assert torch.equal(first["agreed"]["net.1.running_mean"], first["own"]["net.1.running_mean"])


class Overflowing(Classifier):
    """In float32; the first steps of rank 1 overflow, but for the very first."""

    def __init__(self, save_at: int | None = None, path: str = "") -> None:
        super().__init__(save_at, path)
        self.float()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = functional.cross_entropy(self.net(batch[0].float()), batch[1])
        return loss * float("inf") if self.global_rank == 1 and 1 <= self.global_step <= 3 else loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        pass


def test_loss_scales_of_ranks_come_back_and_their_schedules_stay_alike(ranks: Any, tmp_path: Path) -> None:
    """A rank would go on with the scale of another, or an overflow shift its learning rates for good."""

    def in_rank(path: str, is_resumed: bool) -> Any:
        module = Overflowing() if is_resumed else Overflowing(6, path)
        ckpt_path = path if is_resumed else None
        left = fit(LocalSGD(5), module, precision="16-mixed", ckpt_path=ckpt_path)
        return left["lr"], left["scaler"], left["own"]

    path = str(tmp_path / "middle.ckpt")
    first, second = ranks.run(in_rank, path, False)
    assert first[0] == second[0] and first[1]["scale"] > second[1]["scale"]
    for before, after in zip((first, second), ranks.run(in_rank, path, True), strict=True):
        assert before[:2] == after[:2] and largest_difference(before[2], after[2]) == 0


def saved_by(strategy: Any, path: Path) -> Any:
    """Two steps into a round of three, on this rank; the checkpoint and what this rank held."""
    with open_fabric(strategy=strategy) as fabric:
        model, optimizer = fabric.setup(*(lambda m: (m, adamw(m)))(make_mlp()))
        for x, y in batches(5 * fabric.world_size)[fabric.global_rank :: fabric.world_size]:
            fabric.backward(functional.cross_entropy(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
        fabric.save(path, {"model": model, "optimizer": optimizer, "step": 5})
        return weights(model), round_of(model.prepared).state_dict()


def loaded_by(strategy: Any, path: Path) -> Any:
    """What a rank holds after loading, what it was told, and its next sync."""
    with open_fabric(strategy=strategy) as fabric, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model, optimizer = fabric.setup(*(lambda m: (m, adamw(m)))(make_mlp(seed=7)))
        rest = fabric.load(path, {"model": model, "optimizer": optimizer, "step": 0})
        kept = model.prepared.kept
        shared = kept.state_dict() if kept is not None else {}
        return weights(model), shared, [str(one.message) for one in caught], sorted(rest), len(optimizer.state)


@MAKE
def test_another_number_of_ranks_goes_on_from_the_mean_in_the_same_round(ranks: Any, make: Any, tmp_path: Path) -> None:
    """Ranks that have no parameters of their own would begin at random ones, or the work of a round be lost."""
    (first, shared), (second, _) = ranks.run(lambda path: saved_by(make(3), path), tmp_path / "two")
    mean = {name: (value + second[name]) / 2 for name, value in first.items()}
    for rank, (own, found, said, rest, num_states) in enumerate(
        ranks.run(lambda path: loaded_by(make(3), path), tmp_path / "two", world=3)
    ):
        assert largest_difference(own, mean) < 1e-15
        assert found["num_steps"] == shared["num_steps"] == 2
        assert all(torch.equal(a, b) for a, b in zip(found.get("anchor", []), shared.get("anchor", []), strict=True))
        assert len(said) == (rank == 0) and all("2 ranks" in text and "mean" in text for text in said)
        assert not rest and num_states == 4


def test_a_checkpoint_of_ranks_apart_is_one_model_for_every_other_strategy(ranks: Any, tmp_path: Path) -> None:
    """It could be used only by the run that wrote it."""
    (first, _), (second, _) = ranks.run(lambda path: saved_by(DiLoCo(3), path), tmp_path / "apart")
    mean = {name: (value + second[name]) / 2 for name, value in first.items()}
    own, _, said, rest, num_states = loaded_by(SingleDevice(), tmp_path / "apart")
    assert largest_difference(own, mean) < 1e-15 and not said and not rest and num_states == 4
    for own, _, said, _, _ in ranks.run(lambda path: loaded_by(DDP(), path), tmp_path / "apart"):
        assert largest_difference(own, mean) < 1e-15 and not said
    for own, shared, _, _, _ in ranks.run(lambda path: loaded_by(LocalSGD(3), path), tmp_path / "apart"):
        assert largest_difference(own, mean) < 1e-15 and shared["num_steps"] == 0
    files = sorted(path.name for path in (tmp_path / "apart").iterdir())
    assert files == ["drivetrain-manifest.json", "local_0.pt", "local_1.pt", "round.pt", "state.pt"]
    whole: Any = read_tensors(tmp_path / "apart" / "state.pt")
    assert largest_difference(whole["model"], mean) < 1e-15


def test_a_checkpoint_of_ddp_begins_a_round_with_its_weights_as_the_anchor(ranks: Any, tmp_path: Path) -> None:
    """The first outer step would go back to the random weights that the anchor was made from."""

    def save(path: Path) -> Any:
        with open_fabric() as fabric:
            model, optimizer = fabric.setup(*(lambda m: (m, adamw(m)))(make_mlp(seed=5)))
            fabric.save(path, {"model": model, "optimizer": optimizer, "step": 1})
            return weights(model)

    (saved, _) = ranks.run(save, tmp_path / "ddp")
    for own, shared, _, _, _ in ranks.run(lambda path: loaded_by(DiLoCo(3), path), tmp_path / "ddp"):
        assert largest_difference(own, saved) == 0 and shared["num_steps"] == 0
        assert all(torch.equal(a, b) for a, b in zip(shared["anchor"], saved.values(), strict=True))
