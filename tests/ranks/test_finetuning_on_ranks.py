"""Parameters that are unfrozen during a run have the same gradient on all ranks."""

from __future__ import annotations

from typing import Any

import pytest
from torch.utils.data import DataLoader

import drivetrain
from drivetrain import BackboneFinetuning, Callback, LocalSGD, ParameterCheck
from drivetrain.testing.fixtures import make_dataset
from tests.ranks.open_fabric import error_of, largest_difference
from tests.ranks.test_weight_averaging_on_ranks import state_of
from tests.unit.callbacks.test_finetuning import Headed

DATA = make_dataset(48)


class Unfreezes(Callback):
    """Unfreezes by hand, in the middle of an epoch."""

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        pl_module.backbone.requires_grad_(False)

    def on_step_end(self, trainer: Any, pl_module: Any) -> None:
        pl_module.backbone.requires_grad_(trainer.global_step >= 2)


def train(callback: Any, *, strategy: Any = "auto", batch_size: int = 12, window: int = 1, **run: Any) -> Any:
    drivetrain.seed_everything(5, verbose=False)
    module = Headed()
    trainer = drivetrain.Trainer(
        accelerator="cpu", strategy=strategy, max_epochs=run.get("epochs", 3), callbacks=[callback, ParameterCheck(1)],
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        accumulate_grad_batches=window, max_steps=run.get("stop", -1),
    )  # fmt: skip
    try:
        trainer.fit(module, DataLoader(DATA, batch_size=batch_size, shuffle=True), ckpt_path=run.get("load"))
        if "save" in run:
            trainer.save_checkpoint(run["save"])
        return state_of(module)
    finally:
        trainer._fabric.close()


@pytest.mark.filterwarnings("ignore:ParameterCheck compares nothing")
@pytest.mark.parametrize(("strategy", "window"), [("ddp", 1), ("ddp", 2), ("fsdp", 1)])
def test_what_is_unfrozen_is_trained_as_in_one_process(ranks: Any, strategy: str, window: int) -> None:
    """The wrapper that was made while it was frozen does not sync it: ranks drift apart without a word."""

    def in_rank() -> Any:
        return train(BackboneFinetuning(1), strategy=strategy, batch_size=6 // window, window=window)

    expected = train(BackboneFinetuning(1))
    for own in ranks.run(in_rank):
        assert largest_difference(own, expected) < 1e-12


def test_a_run_on_ranks_that_goes_on_is_the_uninterrupted_one(ranks: Any, tmp_path: Any) -> None:
    """The wrapper of the resumed run would not know of what was unfrozen before."""

    def in_rank() -> Any:
        train(BackboneFinetuning(1), strategy="ddp", batch_size=6, epochs=-1, stop=6, save=tmp_path / "a")
        return train(BackboneFinetuning(1), strategy="ddp", batch_size=6, load=tmp_path / "a")

    expected = train(BackboneFinetuning(1))
    for own in ranks.run(in_rank):
        assert largest_difference(own, expected) < 1e-12


def test_what_is_unfrozen_past_the_wrapper_is_an_error_before_its_first_step(ranks: Any) -> None:
    """Ranks would drift apart without a word."""

    def in_rank() -> Any:
        return error_of(lambda: train(Unfreezes(), strategy="ddp", batch_size=6))

    for rank, (kind, code, text) in enumerate(ranks.run(in_rank)):
        assert (kind, code) == ("ModelError", "unfrozen")
        assert f"[rank {rank}/2] These parameters were unfrozen" in text and "backbone.0.weight" in text


def test_ranks_that_step_apart_refuse_what_is_unfrozen_late(ranks: Any) -> None:
    """It would never be brought together."""

    def in_rank() -> Any:
        return error_of(lambda: train(BackboneFinetuning(1), strategy=LocalSGD(2), batch_size=6))[0]

    assert ranks.run(in_rank) == ["ModelError"] * 2
