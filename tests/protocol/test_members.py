"""Members that scripts read or call, each by its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from drivetrain import Callback, DataModule, EarlyStopping, Fabric, OptimizerError, RichModelSummary, Trainer
from tests.unit.trainer.runs import QUIET, Classifier, ListLogger, fit, loader


class Plain(DataModule):
    """One loader for all."""

    def train_dataloader(self) -> Any:
        return loader(8)

    def val_dataloader(self) -> Any:
        return loader(4)

    def test_dataloader(self) -> Any:
        return loader(12)


def test_a_trainer_knows_its_data() -> None:
    """A callback that looks at the data would find none."""
    trainer, data = Trainer(**QUIET, max_epochs=1, num_sanity_val_steps=0), Plain()
    module = Classifier()
    trainer.fit(module, datamodule=data)
    assert trainer.datamodule is data and len(trainer.train_dataloader) == 2 and len(trainer.val_dataloaders) == 1
    trainer.validate(module, datamodule=data, verbose=False)
    trainer.test(module, datamodule=data, verbose=False)
    assert len(trainer.test_dataloaders) == 3
    trainer.predict(module, loader(16))
    assert len(trainer.predict_dataloaders) == 4 and trainer.local_rank == 0


def test_a_trainer_knows_what_it_was_given() -> None:
    """A script that asks for a limit would have to keep it itself."""
    trainer = Trainer(
        **QUIET, limit_train_batches=3, num_sanity_val_steps=1, min_epochs=2, min_steps=4, val_check_interval=0.5,
        check_val_every_n_epoch=2, precision="bf16-mixed",
    )  # fmt: skip
    assert (trainer.limit_train_batches, trainer.num_sanity_val_steps) == (3, 1)
    assert (trainer.min_epochs, trainer.min_steps) == (2, 4)
    assert (trainer.val_check_interval, trainer.check_val_every_n_epoch) == (0.5, 2)
    assert trainer.precision == "bf16-mixed" and trainer.ckpt_path is None


def test_a_trainer_knows_from_where_it_went_on(tmp_path: Path) -> None:
    """A script could not say which weights it tests."""
    _, trainer = fit()
    trainer.save_checkpoint(tmp_path / "ck")
    assert trainer.ckpt_path is None
    trainer.test(Classifier(), loader(4), ckpt_path=tmp_path / "ck", verbose=False)
    assert trainer.ckpt_path == str(tmp_path / "ck")


def test_a_trainer_says_which_stage_runs() -> None:
    """A callback that is used in several stages could not tell them apart."""
    seen = []

    class Look(Callback):
        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
            seen.append((trainer.training, trainer.testing))

        def on_test_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
            seen.append((trainer.training, trainer.testing))

    module, trainer = fit(data=loader(4), callbacks=[Look()])
    trainer.test(module, loader(4), verbose=False)
    assert seen == [(True, False), (False, True)]


def test_a_module_talks_to_ranks_and_freezes_itself(capsys: pytest.CaptureFixture[str]) -> None:
    """A step that gathers, or prints once, would fail."""

    class Talks(Classifier):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("count", float(self.all_gather(torch.ones(2)).sum()), rank_zero_only=True)
            self.print("hello")

    module = Talks()
    trainer = Trainer(**QUIET)
    assert trainer.validate(module, loader(4), verbose=False) == [{"count": 2.0}]
    assert capsys.readouterr().out == "hello\n"
    module.freeze()
    assert not module.training and not any(p.requires_grad for p in module.parameters())
    module.unfreeze()
    assert module.training and all(p.requires_grad for p in module.parameters())


def test_tensors_are_made_where_and_how_a_run_computes() -> None:
    """A large model would be made twice as large, and moved."""
    fabric = Fabric(accelerator="cpu", devices=1, precision="bf16-true")
    assert fabric.seed_everything(3, verbose=False) == 3
    with fabric.init_tensor():
        assert torch.ones(1).dtype == torch.bfloat16
    with Trainer(**QUIET, precision="bf16-true").init_module():
        assert torch.nn.Linear(1, 1).weight.dtype == torch.bfloat16
    assert torch.ones(1).dtype == torch.float32
    fabric.close()


def test_an_operation_whose_gradient_is_nan_is_named() -> None:
    """The argument would be taken, and nothing be looked for."""

    class Bad(Classifier):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return (torch.sqrt(self.net(batch[0]) * 0.0) * 0.0).sum()

    with (
        pytest.warns(UserWarning, match="Traceback of forward call"),
        pytest.raises(RuntimeError, match="SqrtBackward"),
    ):
        fit(Bad(), detect_anomaly=True)
    assert not torch.is_anomaly_enabled()
    fit(Bad())


@pytest.mark.parametrize("strict", [True, False])
def test_a_schedule_without_its_value_is_an_error_if_it_is_strict(strict: bool) -> None:
    """A misspelt name would leave the rate as it is."""

    class Scheduled(Classifier):
        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
            config = {"scheduler": plateau, "monitor": "no_such", "strict": strict}
            return {"optimizer": optimizer, "lr_scheduler": config}

    if strict:
        with pytest.raises(OptimizerError):
            fit(Scheduled())
    else:
        with pytest.warns(UserWarning, match="no_such"):
            fit(Scheduled())


def test_a_callback_finds_its_state_by_its_key(tmp_path: Path) -> None:
    """Another one would take its state."""

    class Keyed(EarlyStopping):
        @property
        def state_key(self) -> str:
            return f"Keyed[{self.monitor}]"

    _, trainer = fit(val_data=loader(4), callbacks=[Keyed("val_loss", patience=9)])
    trainer.save_checkpoint(tmp_path / "ck")
    plain, keyed = EarlyStopping("val_loss"), Keyed("val_loss", patience=9)
    again = Trainer(**QUIET, max_epochs=1, callbacks=[plain, keyed])
    again.fit(Classifier(), loader(), loader(4), ckpt_path=tmp_path / "ck")
    assert keyed.best_score == trainer.early_stopping_callback.best_score != plain.best_score


def test_a_summary_has_as_many_levels_as_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    """A deep model would be one line."""
    shown = []
    for depth in (1, 2):
        fit(callbacks=[RichModelSummary(max_depth=depth)], enable_model_summary=True, logger=[ListLogger()])
        shown.append(capsys.readouterr())
    assert len(shown[1].out + shown[1].err) > len(shown[0].out + shown[0].err)
