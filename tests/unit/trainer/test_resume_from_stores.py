"""Runs that find in a store where they were, and saves beside training together with other callbacks."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from drivetrain import (
    BackboneFinetuning,
    Callback,
    CheckpointError,
    ModelCheckpoint,
    OnExceptionCheckpoint,
    Trainer,
    seed_everything,
)
from drivetrain.callbacks.weight_averaging import WeightAveraging
from drivetrain.checkpoint.manifest import MANIFEST_NAME, read_manifest
from drivetrain.checkpoint.read import read_tensors
from drivetrain.testing.fixtures import make_dataset
from tests import stores
from tests.unit.callbacks.test_finetuning import Headed
from tests.unit.callbacks.test_weight_averaging import Trail, assert_close, mean_of
from tests.unit.fabric.raw_loop import open_fabric
from tests.unit.fabric.test_saves import Gate
from tests.unit.trainer.runs import QUIET, Classifier, are_equal, loader, weights


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an empty store; downloads go to a directory that is known."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    stores.register()
    return f"shared://{tmp_path}/store"


def run(url: str, *, steps: int, is_async: bool = True, **options: Any) -> tuple[Any, Trainer]:
    """Train for some steps of six in an epoch, with a checkpoint after each."""
    seed_everything(1, verbose=False)
    module = Classifier()
    keeper = ModelCheckpoint(url, "{step}", every_n_train_steps=1, save_top_k=-1, save_async=is_async)
    trainer = Trainer(**{**QUIET, "enable_checkpointing": None}, callbacks=keeper, max_steps=steps)
    trainer.fit(module, loader(24, shuffle=True), **options)
    return module, trainer


def flip(checkpoint: Path) -> None:
    (path,) = checkpoint.glob("*/state.pt")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_a_run_goes_on_from_the_newest_whole_checkpoint_of_a_store(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A job that keeps its checkpoints in a store would begin anew at each start, or load what is damaged."""
    whole, _ = run(f"{store}/whole", steps=6)
    url, folder = f"{store}/again", tmp_path / "store" / "again"
    run(url, steps=4, resume="auto")
    flip(folder / "step=4.ckpt")
    (folder / "step=3.ckpt" / MANIFEST_NAME).write_text("{")
    capsys.readouterr()
    with pytest.warns(UserWarning) as caught:
        module, trainer = run(url, steps=6, resume="auto")
    (text,) = [str(one.message) for one in caught if "passed over" in str(one.message)]
    first, *passed_over = text.splitlines()
    assert first == f"{url}/step=2.ckpt is used; passed over:" and len(passed_over) == 2
    assert passed_over[0].startswith(f"    {url}/step=3.ckpt: {MANIFEST_NAME} is damaged")
    assert passed_over[1] == f"    {url}/step=4.ckpt: state.pt has other content than was written"
    assert capsys.readouterr().out == f"resume='auto': goes on from {url}/step=2.ckpt (step 2).\n"
    assert trainer.global_step == 6 and are_equal(weights(module), weights(whole))
    assert not list((tmp_path / "tmp").glob("drivetrain-*"))


@pytest.mark.parametrize("option", ["resume", "ckpt_path"])
def test_a_folder_of_a_store_can_be_given(store: str, option: str) -> None:
    """Only a folder of this machine could be given, or a checkpoint whose step somebody has to look up."""
    run(f"{store}/a", steps=3)
    _, trainer = run(f"{store}/b", steps=4, **{option: f"{store}/a"})
    assert trainer.global_step == 4 and len(trainer.model.seen) == 1
    with pytest.raises(CheckpointError) as caught:
        run(f"{store}/b", steps=4, **{option: f"{store}/nothing"})
    assert caught.value.code == "checkpoint-missing"


def test_a_store_that_fails_is_not_an_empty_one(store: str) -> None:
    """A run would begin from the start, and replace its checkpoints, because a request has failed."""
    run(store, steps=2)
    stores.SharedStore.fails_reading = True
    with pytest.raises(CheckpointError, match="ServiceUnavailable") as caught:
        run(store, steps=3, resume="auto")
    assert caught.value.code == "checkpoint-read"


def test_a_loop_of_ones_own_finds_the_newest_of_a_store(store: str, tmp_path: Path) -> None:
    """`Fabric.latest` would look for a directory that is called like the URL; or leave its downloads behind."""
    fabric = open_fabric()
    for step in (1, 2):
        handle = fabric.save(f"{store}/step={step}", {"value": torch.full((5,), float(step)), "step": step}, wait=False)
    assert fabric.latest(store) == f"{store}/step=2" and handle.is_done
    assert fabric.latest(f"{store}/nothing") is None
    flip(tmp_path / "store" / "step=2")
    with pytest.warns(UserWarning, match="passed over"):
        assert fabric.load(store)["step"] == 1
    fabric.close()
    assert not list((tmp_path / "tmp").glob("drivetrain-*"))


def test_a_root_that_is_a_url_is_searched(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each start has a new version of the logger, below which there is nothing to go on from."""
    monkeypatch.chdir(tmp_path)

    def start(steps: int, *, has_keeper: bool = True) -> int:
        with pytest.warns(UserWarning, match="is a URL"):
            trainer = Trainer(
                **{**QUIET, "logger": True, "enable_checkpointing": has_keeper},
                default_root_dir=store,
                max_steps=steps,
            )
        trainer.fit(module := Classifier(), loader(24), resume="auto")
        return len(module.seen)

    assert [start(2), start(3), start(3, has_keeper=False)] == [2, 1, 3]
    assert (tmp_path / "store" / "drivetrain_logs" / "version_0" / "checkpoints" / "epoch=0-step=3.ckpt").exists()


def test_a_save_beside_training_holds_what_callbacks_put_into_the_module_for_it(tmp_path: Path) -> None:
    """The weights that are trained, or those of a later step, in the place of the average."""
    trail, average = Trail(), WeightAveraging()
    keeper = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=3, save_top_k=-1, save_async=True)

    class Held(Callback):
        def on_step_end(self, trainer: Any, pl_module: Any) -> None:
            if trainer.global_step == 1:
                trainer.run.fabric.saves.write = self.gate = Gate()
            elif trainer.global_step == 5:
                self.gate.opened.set()

    trainer = Trainer(
        **{**QUIET, "enable_checkpointing": None}, callbacks=[average, trail, Held(), keeper], max_epochs=1
    )
    trainer.fit(Classifier(), loader(24))
    assert_close(dict(read_tensors(tmp_path / "step=3.ckpt" / "state.pt")["model"]), mean_of(trail.trained[:3]))
    extra = read_manifest(tmp_path / "step=3.ckpt").extra
    assert (extra["epoch"], extra["weights_only"], extra["strategy"]) == (0, False, "single_device")


def test_a_folder_is_given_to_a_run_whose_optimizers_grow(tmp_path: Path) -> None:
    """What is read before the optimizers are made would be looked for in the folder itself."""

    def start(steps: int, **options: Any) -> dict[str, torch.Tensor]:
        seed_everything(1, verbose=False)
        keeper = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=3, save_top_k=-1)
        trainer = Trainer(
            **{**QUIET, "enable_checkpointing": None}, callbacks=[BackboneFinetuning(1), keeper], max_steps=steps
        )
        trainer.fit(module := Headed(), DataLoader(make_dataset(12), batch_size=4), **options)
        return weights(module)

    whole = start(9)
    (tmp_path / "step=9.ckpt").rename(tmp_path.parent / "elsewhere")
    assert are_equal(start(9, resume=tmp_path), whole)


@pytest.mark.filterwarnings("ignore:Saved inside of the window")
def test_an_exception_is_saved_to_a_store_after_a_save_that_failed(store: str, tmp_path: Path) -> None:
    """The error of a save before would be taken for one of the save that an exception calls for."""
    gate = Gate(is_open=True, fails=True)

    class Broken(Callback):
        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
            if trainer.global_step == 2:
                trainer.run.fabric.saves.write = gate
                handle = trainer.save_checkpoint(tmp_path / "beside", wait=False)
                (writer,) = [one for one in threading.enumerate() if one.name == "drivetrain-save"]
                writer.join()
                assert handle.has_failed
                gate.fails = False
                raise KeyError("broken")

    keeper = OnExceptionCheckpoint(store)
    with pytest.raises(KeyError, match="broken"):
        Trainer(**QUIET, callbacks=[keeper, Broken()], max_epochs=1).fit(Classifier(), loader(24))
    assert keeper.ckpt_path == f"{store}/on_exception.ckpt"
    assert read_manifest(tmp_path / "store" / "on_exception.ckpt").step == 2
