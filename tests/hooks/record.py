"""Small runs with a module, a data module and two callbacks that override every hook, and what they heard."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader

from drivetrain import Callback, DataModule, ModelCheckpoint, Module, Trainer
from drivetrain.testing.fixtures import make_dataset, make_mlp
from tests.hooks.named import CALLBACK, DATA_MODULE, MODULE, names_of

LAST = "last callback"
END_OF_SAVING = "saving, its end"
GOING_ON = "a fit that goes on"
FAILING, FAILING_RANK = "a fit that fails", 1
NUM_RANKS, NUM_EPOCHS, NUM_MICRO, WINDOW, NUM_VAL = 2, 2, 4, 2, 2

Notes = list[tuple[str, str]]  # owner and hook, one after another
Recording = dict[str, Notes]  # for each run


class Intended(Exception):
    """The failure of a run that is to fail."""


class Trained(Module):
    """A float64 network with all steps and loaders of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.net = make_mlp()

    def _loss(self, batch: Any) -> Tensor:
        return functional.cross_entropy(self.net(batch[0]), batch[1])

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self._loss(batch)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self._loss(batch))

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.log("test_loss", self._loss(batch))

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        return self.net(batch[0])

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        schedulers = [
            {"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 2), "interval": interval}
            for interval in ("step", "epoch")
        ]
        return [optimizer], schedulers


class Data(DataModule):
    """Has something to keep in a checkpoint."""

    def state_dict(self) -> dict[str, Any]:
        return {"kept": 1}


def _loader(num_batches: int, num_ranks: int) -> DataLoader[Any]:
    """So many batches for each rank."""
    return DataLoader(make_dataset(2 * num_ranks * num_batches), batch_size=2)


def _with_loaders(cls: type, num_ranks: int) -> type:
    """The class with small loaders of each stage."""
    sizes = {"train": NUM_MICRO, "val": NUM_VAL, "test": NUM_VAL, "predict": NUM_VAL}
    loaders = {f"{name}_dataloader": lambda self, num=num: _loader(num, num_ranks) for name, num in sizes.items()}
    return type(cls.__name__, (cls,), loaders)


def _listening(base: type, owner: str, names: list[str], notes: Notes, *arguments: Any) -> Any:
    """An object of a class that notes each call of its hooks, and does what the base does."""

    def noted(name: str) -> Any:
        usual = getattr(base, name)

        @functools.wraps(usual)
        def method(self: Any, *args: Any, **options: Any) -> Any:
            notes.append((owner, name))
            return usual(self, *args, **options)

        return method

    return type(base.__name__, (base,), {name: noted(name) for name in names})(*arguments)


class Listener(Callback):
    """Has something to keep in a checkpoint, and may fail on a rank."""

    def __init__(self, owner: str, notes: Notes, fails_on: int | None) -> None:
        self.owner, self.notes, self.fails_on = owner, notes, fails_on
        self.runs_last = owner == LAST

    @property
    def state_key(self) -> str:
        return self.owner

    def state_dict(self) -> dict[str, Any]:
        return {"kept": 1}

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        if trainer.global_rank == self.fails_on:
            raise Intended

    @contextmanager
    def saving(self, trainer: Any, pl_module: Any) -> Iterator[None]:
        yield
        self.notes.append((self.owner, END_OF_SAVING))


def _run(
    method: str, folder: str, num_ranks: int, *, with_data: bool = True, fails_on: int | None = None,
    epochs: int = NUM_EPOCHS, **options: Any,
) -> Notes:  # fmt: skip
    notes: Notes = []
    module = _listening(_with_loaders(Trained, num_ranks), MODULE, names_of(MODULE), notes)
    callbacks = [
        _listening(Listener, owner, names_of(CALLBACK), notes, owner, notes, fails_on if owner == CALLBACK else None)
        for owner in (LAST, CALLBACK)
    ]
    if method == "fit":
        callbacks.append(ModelCheckpoint(dirpath=folder, save_top_k=-1, filename="{epoch}"))
    trainer = Trainer(
        accelerator="cpu", strategy="ddp" if num_ranks > 1 else "auto", max_epochs=epochs,
        accumulate_grad_batches=WINDOW, gradient_clip_val=1.0, num_sanity_val_steps=1, logger=False,
        enable_checkpointing=method == "fit", enable_progress_bar=False, enable_model_summary=False,
        callbacks=callbacks,
    )  # fmt: skip
    if with_data:
        options["datamodule"] = _listening(_with_loaders(Data, num_ranks), DATA_MODULE, names_of(DATA_MODULE), notes)
    with suppress(Intended):
        getattr(trainer, method)(module, **options)
    trainer._fabric.close()
    return notes


def record(folder: str, num_ranks: int = NUM_RANKS) -> Recording:
    """Make the runs in this rank.

    Ranks: all.

    Args:
        folder: An empty one, the same on all ranks; for checkpoints.
        num_ranks: So many make them.
    """
    run = functools.partial(_run, num_ranks=num_ranks)
    fit = run("fit", folder)
    newest = max(Path(folder).glob("*.ckpt"), key=lambda path: path.name)
    return {
        "fit": fit,
        GOING_ON: run("fit", f"{folder}/on", epochs=NUM_EPOCHS + 1, ckpt_path=newest),
        "validate": run("validate", folder, verbose=False),
        "test": run("test", folder, verbose=False),
        "predict": run("predict", folder),
        "a fit without a data module": run("fit", f"{folder}/alone", with_data=False),
        "test without a data module": run("test", folder, with_data=False, verbose=False),
        "predict without a data module": run("predict", folder, with_data=False),
        FAILING: run("fit", f"{folder}/fails", fails_on=FAILING_RANK),
    }
