"""The order of a whole run, as callbacks and modules see it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from drivetrain import Callback, DataModule, Trainer
from drivetrain.loop.hooks import CALLBACK_EVENTS
from tests.unit.trainer.runs import QUIET, Classifier, fit, loader


class Recorder(Callback):
    """Notes the name of every event."""

    def __init__(self, heard: list[str]) -> None:
        for event in (*CALLBACK_EVENTS, "setup", "teardown"):
            if event not in ("on_save_checkpoint", "on_load_checkpoint"):
                setattr(self, event, lambda *args, event=event: heard.append(event))


STEP = [
    "on_train_batch_start", "on_before_backward", "on_after_backward", "on_before_optimizer_step",
    "on_before_zero_grad", "on_train_batch_end", "on_step_end",
]  # fmt: skip
MICRO = ["on_train_batch_start", "on_before_backward", "on_after_backward", "on_train_batch_end"]
VALIDATION = [
    "on_validation_start", "on_validation_epoch_start", "on_validation_batch_start", "on_validation_batch_end",
    "on_validation_epoch_end", "on_validation_end",
]  # fmt: skip


def test_a_fit_calls_its_hooks_in_order() -> None:
    """A callback that prepares something in one hook would find it missing in another."""
    heard: list[str] = []
    fit(data=loader(12), val_data=loader(4), accumulate_grad_batches=2, callbacks=[Recorder(heard)])
    assert heard == [
        "setup", "on_fit_start", "on_sanity_check_start", *VALIDATION, "on_sanity_check_end", "on_train_start",
        "on_train_epoch_start", *MICRO, *STEP, *STEP, *VALIDATION, "on_train_epoch_end", "on_train_end", "on_fit_end",
        "teardown",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("stage", "event"), [("validate", "validation"), ("test", "test"), ("predict", "predict")]
)  # fmt: skip
def test_an_evaluation_calls_its_hooks_in_order(stage: str, event: str) -> None:
    """Hooks of one stage would be called in another."""
    heard: list[str] = []
    trainer = Trainer(**QUIET, callbacks=[Recorder(heard)])
    getattr(trainer, stage)(Classifier(), loader(4))
    assert heard == ["setup", *(one.replace("validation", event) for one in VALIDATION), "teardown"]


def test_a_module_hears_of_the_end_of_a_step() -> None:
    """The hook would be accepted, and never be called."""
    steps: list[int] = []

    class Listens(Classifier):
        def on_step_end(self) -> None:
            steps.append(self.global_step)

    fit(Listens(), loader(12), accumulate_grad_batches=2)
    assert steps == [1, 2]


def test_the_hooks_around_a_step_see_the_right_state() -> None:
    """Gradients would be gone, or the counter be one off."""
    notes: list[Any] = []

    class Look(Callback):
        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
            notes.append(("start", trainer.global_step, trainer.micro_step, batch_idx))

        def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
            assert all(p.grad is not None for p in pl_module.parameters()) and optimizer is trainer.optimizers[0]
            notes.append(("optimizer", trainer.global_step, trainer.micro_step))

        def on_before_zero_grad(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
            assert all(p.grad is not None for p in pl_module.parameters())

        def on_step_end(self, trainer: Any, pl_module: Any) -> None:
            assert all(p.grad is None for p in pl_module.parameters())
            notes.append(("step", trainer.global_step, trainer.micro_step))

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            notes.append(("end", trainer.global_step, trainer.micro_step, batch_idx))

    fit(data=loader(8), accumulate_grad_batches=2, callbacks=[Look()])
    assert notes == [
        ("start", 0, 0, 0), ("end", 0, 1, 0), ("start", 0, 1, 1), ("optimizer", 0, 2), ("end", 1, 2, 1), ("step", 1, 2),
    ]  # fmt: skip


@pytest.mark.parametrize("size", [1, 2])
def test_callbacks_see_the_loss_that_the_user_returned(size: int) -> None:
    """It would be divided by the window, or scaled."""
    returned: list[Any] = []
    seen: list[Any] = []

    class Own(Classifier):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            returned.append({"loss": self.loss_of(batch), "more": batch_idx})
            return returned[-1]

    class Look(Callback):
        def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
            seen.append(loss)

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            seen.append(outputs)

    fit(Own(), loader(16), accumulate_grad_batches=size, callbacks=[Look()])
    assert len(seen) == 2 * len(returned) == 8
    for index, output in enumerate(returned):
        assert seen[2 * index] is output["loss"] and seen[2 * index + 1] is output


def test_an_exception_is_told_and_everything_is_taken_down() -> None:
    """A callback could not clean up, and the module would keep its trainer."""
    heard: list[str] = []

    class Broken(Classifier):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            raise KeyError("broken")

    module, trainer = Broken(), Trainer(**QUIET, max_epochs=1, callbacks=[Recorder(heard)])
    with pytest.raises(KeyError, match="broken"):
        trainer.fit(module, loader())
    assert heard[-2:] == ["on_exception", "teardown"] and trainer.interrupted
    with pytest.raises(RuntimeError, match="outside of a run"):
        module.trainer  # noqa: B018


def test_a_datamodule_is_asked_in_order() -> None:
    """Data would be loaded before they are downloaded."""
    heard: list[Any] = []

    class Data(DataModule):
        def prepare_data(self) -> None:
            heard.append("prepare_data")

        def setup(self, stage: str) -> None:
            heard.append(("setup", stage, self.trainer is not None))

        def teardown(self, stage: str) -> None:
            heard.append(("teardown", stage))

        def train_dataloader(self) -> Any:
            heard.append("train_dataloader")
            return loader(8)

        def val_dataloader(self) -> Any:
            heard.append("val_dataloader")
            return [loader(4), loader(4)]

        def test_dataloader(self) -> Any:
            return loader(4)

        def predict_dataloader(self) -> Any:
            return loader(4)

    trainer, data = Trainer(**QUIET, max_epochs=1, num_sanity_val_steps=0), Data()
    module = Classifier()
    trainer.fit(module, datamodule=data)
    assert heard == ["prepare_data", ("setup", "fit", True), "train_dataloader", "val_dataloader", ("teardown", "fit")]
    assert module.seen == [("train", 0, 0), ("train", 1, 0), ("validate", 0, 0), ("validate", 0, 1)]
    assert len(trainer.test(module, verbose=False)) == 1, "the datamodule of the fit is used again"
    assert len(trainer.predict(module, data)) == 1, "a datamodule may stand in the place of loaders"


def test_loaders_may_be_the_modules_own() -> None:
    """A module that brings its data could not be trained without arguments."""

    class Own(Classifier):
        def train_dataloader(self) -> Any:
            return loader(8)

        def val_dataloader(self) -> Any:
            return loader(4)

    module = Own()
    Trainer(**QUIET, max_epochs=1, num_sanity_val_steps=0).fit(module)
    assert module.seen == [("train", 0, 0), ("train", 1, 0), ("validate", 0, 0)]


def test_layers_may_be_made_when_the_run_begins() -> None:
    """A large model could not be made on its device."""

    class Late(Classifier):
        def __init__(self) -> None:
            super().__init__()
            self.head: Any = None

        def configure_model(self) -> None:
            if self.head is None:
                self.head = torch.nn.Linear(4, 4, dtype=torch.float64)

        def loss_of(self, batch: Any) -> Any:
            return self.head(self.net(batch[0])).square().mean()

    _, trainer = fit(Late())
    assert sum(len(group["params"]) for group in trainer.optimizers[0].param_groups) == 6


class Asked(Classifier):
    """Notes when it is asked for its loaders; what it makes of them depends on what came before."""

    def __init__(self, asks_in: str = "") -> None:
        super().__init__()
        self.heard: list[Any] = []
        self.asks_in = asks_in

    def train_dataloader(self) -> Any:
        self.heard.append("train_dataloader")
        return loader(8)

    def val_dataloader(self) -> Any:
        self.heard.append("val_dataloader")
        return loader(4)

    def note(self, hook: str) -> None:
        self.heard.append(hook)
        if self.asks_in == hook:
            self.heard.append(self.trainer.estimated_stepping_batches)

    def configure_model(self) -> None:
        self.note("configure_model")

    def configure_optimizers(self) -> Any:
        self.note("configure_optimizers")
        return super().configure_optimizers()

    def on_fit_start(self) -> None:
        self.note("on_fit_start")

    def on_train_start(self) -> None:
        self.note("on_train_start")

    def on_validation_start(self) -> None:
        self.note("on_validation_start")

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.note("on_load_checkpoint")


SET_UP = ["configure_model", "configure_optimizers", "on_fit_start"]
LOADERS = ["train_dataloader", "val_dataloader"]


def test_loaders_are_asked_for_after_everything_else_is_set_up() -> None:
    """A loader that needs what `on_fit_start` or `configure_optimizers` has made would not find it."""
    module = Asked()
    Trainer(**QUIET, max_epochs=1).fit(module)
    assert module.heard == [*SET_UP, *LOADERS, "on_validation_start", "on_train_start", "on_validation_start"]
    (module := Asked()).heard.clear()
    Trainer(**QUIET).validate(module, verbose=False)
    assert module.heard == ["configure_model", "val_dataloader", "on_validation_start"]


@pytest.mark.parametrize("asks_in", ["configure_optimizers", "on_fit_start"])
def test_a_loader_that_is_needed_earlier_is_made_then_and_once(asks_in: str) -> None:
    """A schedule over the whole run would not know how long that is; or data be loaded twice."""
    module = Asked(asks_in)
    Trainer(**QUIET, max_epochs=3, num_sanity_val_steps=0).fit(module)
    at = module.heard.index(asks_in) + 1
    assert module.heard[at : at + 2] == ["train_dataloader", 6]
    assert module.heard.count("train_dataloader") == module.heard.count("val_dataloader") == 1


def test_a_run_that_goes_on_has_its_loaders_where_their_state_is_loaded(tmp_path: Any) -> None:
    """Its position would be lost; or hooks come after the module is wrapped."""
    module = Asked()
    trainer = Trainer(**QUIET, max_epochs=1)
    trainer.fit(module)
    trainer.save_checkpoint(tmp_path / "ck")
    module.heard.clear()
    Trainer(**QUIET, max_epochs=2).fit(module, ckpt_path=tmp_path / "ck")
    expected = ["configure_model", "on_load_checkpoint", "configure_optimizers"]
    assert module.heard[:3] == expected and module.heard[3:5] == LOADERS
    assert module.heard[5:7] == ["on_fit_start", "on_train_start"]


def test_a_method_that_makes_a_loader_may_ask_the_trainer() -> None:
    """It would be asked for the loader again by what it asks, without end."""

    class Curious(Asked):
        def train_dataloader(self) -> Any:
            assert self.trainer.train_dataloader is None and self.trainer.num_val_batches == [1]
            return super().train_dataloader()

    Trainer(**QUIET, max_epochs=1).fit(Curious())
