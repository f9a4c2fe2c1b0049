"""Hooks of checkpoints where weights are replicas, shards, or of each rank alone."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from drivetrain import DDP, FSDP, Callback, LocalSGD, SingleDevice, Trainer, seed_everything
from drivetrain.checkpoint.verify import problems
from drivetrain.cluster.read_cluster import current_cluster
from drivetrain.strategies import tensor_files
from drivetrain.strategies.saved_state import read_module
from tests.ranks.open_fabric import error_of
from tests.unit.trainer.runs import QUIET, Classifier, loader

STRATEGIES = {"ddp": DDP, "fsdp": FSDP, "local_sgd": lambda: LocalSGD(sync_every=2), "single": SingleDevice}


class HeadAlone(Classifier):
    """Its first layer is frozen, and left out of checkpoints."""

    def __init__(self) -> None:
        super().__init__(dropout=0.2)
        self.net[0].requires_grad_(False)

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW([p for p in self.parameters() if p.requires_grad], lr=1e-2)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        state = checkpoint["state_dict"]
        checkpoint["state_dict"] = {name: one for name, one in state.items() if not name.startswith("net.0.")}


class Renamed(Classifier):
    """Its network is called otherwise in the files; one tensor is read, to be changed."""

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        state = checkpoint["state_dict"]
        checkpoint["state_dict"] = {name.replace("net.", "old."): one for name, one in state.items()}
        checkpoint["ema"] = {"weight": state["net.0.weight"]}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        state = checkpoint["state_dict"]
        renamed = {name.replace("old.", "net."): one for name, one in state.items() if one.shape != (1, 1, 1)}
        renamed["net.0.weight"] = torch.cat([renamed["net.0.weight"][:1], renamed["net.0.weight"][1:]])
        assert torch.equal(checkpoint["ema"]["weight"], renamed["net.0.weight"])
        checkpoint["state_dict"] = renamed


class OnOneRank(Classifier):
    """Its ranks do not agree on what is left out."""

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if self.global_rank == 0:
            del checkpoint["state_dict"]["net.0.bias"]


class RaisesOnOneRank(Classifier):
    """One of its ranks fails when it saves."""

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if self.global_rank == 1:
            raise ArithmeticError("of rank 1")


class Save(Callback):
    def __init__(self, path: Path | None, is_beside: bool) -> None:
        self.path, self.is_beside = path, is_beside

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if self.path is not None:
            trainer.save_checkpoint(self.path, wait=not self.is_beside)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        model = trainer.strategy.full_state({"model": trainer.run.prepared})["model"]
        self.trained = {name: one.clone() for name, one in model.items()}


def train(
    kind: str, module_type: type[Classifier], *, epochs: int, path: Path | None = None, is_beside: bool = False,
    ckpt_path: Path | None = None,
) -> tuple[dict[str, Any], list[str]]:  # fmt: skip
    """The weights of a run in this rank, and the shards that were read whole."""
    seed_everything(5, verbose=False)
    world, module = current_cluster().world_size, module_type()
    read: list[str] = []
    trainer = Trainer(
        **QUIET,
        max_epochs=epochs,
        strategy=STRATEGIES[kind if world > 1 else "single"](),
        devices=world,
        callbacks=(keeper := Save(path, is_beside)),
    )
    ask = tensor_files.ShardReader.ask

    def noted(self: Any, name: str, like: Any = None) -> Any:
        if like is None:
            read.append(name)
        return ask(self, name, like)

    tensor_files.ShardReader.ask = noted  # type: ignore[method-assign]
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*has no values for.*")
            trainer.fit(module, loader(24, shuffle=True, batch_size=4 // world), ckpt_path=ckpt_path)
    finally:
        tensor_files.ShardReader.ask = ask  # type: ignore[method-assign]
    return keeper.trained, read


@pytest.mark.parametrize("module_type", [HeadAlone, Renamed])
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
@pytest.mark.parametrize("is_beside", [False, True])
def test_a_run_whose_hooks_change_its_checkpoints_goes_on_exactly(
    ranks: Any, tmp_path: Path, kind: str, module_type: type[Classifier], is_beside: bool
) -> None:
    """Ranks would go on with other weights than one another, or than those that were trained."""

    def in_rank() -> Any:
        train(kind, module_type, epochs=1, path=tmp_path / "ck", is_beside=is_beside)
        return train(kind, module_type, epochs=2), train(kind, module_type, epochs=2, ckpt_path=tmp_path / "ck")

    for (whole, _), (resumed, read) in ranks.run(in_rank):
        assert whole.keys() == resumed.keys() and all(torch.equal(whole[name], resumed[name]) for name in whole)
        asked_for = ["model.old.0.weight", "trainer.ema.weight"] if module_type is Renamed and kind == "fsdp" else []
        assert sorted(read) == asked_for, "a tensor was gathered only because there is a hook"
    assert problems(tmp_path / "ck") == []
    names = read_module(tmp_path / "ck", name="model").keys()
    expected = {"net.3.weight", "net.3.bias"} if module_type is HeadAlone else {"old.0.weight", "old.2.bias"}
    assert expected <= names and not any(name.startswith("net.0.") for name in names)


def test_shards_without_a_frozen_part_go_on_in_one_process(ranks: Any, tmp_path: Path) -> None:
    """A checkpoint that hooks have changed could only be read by the strategy that wrote it."""
    (trained, _), _ = ranks.run(lambda: train("fsdp", HeadAlone, epochs=1, path=tmp_path / "ck"))
    with pytest.warns(UserWarning, match="no values for 2 of 4 names"):
        module = HeadAlone.load_from_checkpoint(tmp_path / "ck")
    assert all(torch.equal(one, trained[name]) for name, one in module.state_dict().items())
    resumed, _ = train("single", HeadAlone, epochs=1, ckpt_path=tmp_path / "ck")
    assert all(torch.equal(resumed[name], trained[name]) for name in trained)


def test_names_that_only_one_rank_leaves_out_are_refused_where_all_write(ranks: Any, tmp_path: Path) -> None:
    """The file would lack the shards of one rank; with replicas what rank 0 leaves is what is saved."""

    def in_rank() -> Any:
        train("ddp", OnOneRank, epochs=1, path=tmp_path / "ddp")
        return error_of(lambda: train("fsdp", OnOneRank, epochs=1, path=tmp_path / "fsdp"))

    for kind, code, *_ in ranks.run(in_rank):
        assert (kind, code) == ("CheckpointError", "checkpoint-hook")
    assert "net.0.bias" not in read_module(tmp_path / "ddp") and not (tmp_path / "fsdp").exists()


def test_weights_of_each_rank_are_not_changed_by_hooks(ranks: Any, tmp_path: Path) -> None:
    """Each rank would go on with another thing than what its hook has left."""
    for kind, code, *_ in ranks.run(
        lambda: error_of(lambda: train("local_sgd", HeadAlone, epochs=1, path=tmp_path / "ck"))
    ):
        assert (kind, code) == ("CheckpointError", "checkpoint-hook")


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_a_hook_that_fails_on_one_rank_is_an_error_on_all(ranks: Any, tmp_path: Path, kind: str) -> None:
    """The others would wait for it in the save."""
    ranks.run(lambda: train(kind, Classifier, epochs=1, path=tmp_path / "ck"))
    told = ranks.run(lambda: error_of(lambda: train(kind, RaisesOnOneRank, epochs=1, path=tmp_path / "ck")))
    assert [one[:2] for one in told] == [("CheckpointError", "checkpoint-other-rank"), ("ArithmeticError", "")]
    assert problems(tmp_path / "ck") == []
