"""What bad input gets: an error of the right class and code that names what the user wrote, and nothing lost."""

# ruff: noqa: E501 (a table reads best with one case on a line)

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import drivetrain as dt
from drivetrain.base.optional import import_extra
from drivetrain.testing.fixtures import make_dataset

QUIET: dict[str, Any] = {
    "accelerator": "cpu", "logger": False, "enable_checkpointing": False, "enable_progress_bar": False,
    "enable_model_summary": False, "max_epochs": 1,
}  # fmt: skip


class Model(dt.Module):
    """Trains; each case breaks one thing."""

    output: Callable[[torch.Tensor], Any] = staticmethod(lambda loss: loss)

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(8, 4, dtype=torch.float64)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return type(self).output(self.net(batch[0]).square().mean())

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class NoStep(dt.Module):
    """Has no training step."""


class ReturnsText(Model):
    output = staticmethod(lambda loss: "0.5")


class ReturnsVector(Model):
    output = staticmethod(lambda loss: loss * torch.ones(3))


class ReturnsDetached(Model):
    output = staticmethod(lambda loss: loss.detach())


class ReturnsDictWithoutLoss(Model):
    output = staticmethod(lambda loss: {"value": loss})


class StrangeOptimizer(Model):
    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)


class NoOptimizer(Model):
    def configure_optimizers(self) -> Any:
        return "sgd"


class FormerHook(Model):
    def validation_epoch_end(self, outputs: Any) -> None:
        """Of a version long gone."""


class MisspeltHook(Model):
    def on_train_epoch_ends(self) -> None:
        """Nobody would call it."""


class MisspeltCallback(dt.Callback):
    def on_train_batch_finish(self, *args: Any) -> None:
        """Nobody would call it."""


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(3))


def loader(length: int = 12, **options: Any) -> DataLoader[Any]:
    return DataLoader(make_dataset(length), **{"batch_size": 4, **options})


def fit(model: Any = None, data: Any = None, **options: Any) -> None:
    dt.Trainer(**{**QUIET, **options}).fit(Model() if model is None else model, loader() if data is None else data)


def fabric() -> dt.Fabric:
    made = dt.Fabric(accelerator="cpu", devices=1)
    made.launch()
    return made


def call_unprepared() -> None:
    class Net(nn.Linear):
        def loss_of(self, x: torch.Tensor) -> torch.Tensor:
            return self(x).sum()

    fabric().setup(Net(2, 2)).loss_of(torch.ones(1, 2))


def leave_a_window() -> None:
    own = fabric()
    net = nn.Linear(8, 4, dtype=torch.float64)
    model, optimizer = own.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
    for window in own.windows(own.setup_dataloaders(loader()), model, optimizer, size=2):
        for _ in window:
            break


CASES: list[tuple[str, Callable[[], Any], type[dt.DrivetrainError], str, str]] = [
    ("batch that cannot be split", lambda: fit(global_batch_size=10), dt.ConfigError, "batch-split", "8 or 12"),
    ("two sizes of a step", lambda: fit(global_batch_size=8, accumulate_grad_batches=2), dt.ConfigError, "batch-split", "2"),
    ("device kind not there", lambda: fit(accelerator="cuda"), dt.DeviceError, "device-missing", "cuda"),
    ("device kind unknown", lambda: fit(accelerator="tpux"), dt.ConfigError, "accelerator", "tpux"),
    ("devices that mean nothing", lambda: fit(devices=0), dt.ConfigError, "devices", "0"),
    ("cpu by index", lambda: fit(devices=[0, 1]), dt.ConfigError, "devices", "[0, 1]"),
    ("one device and two", lambda: fit(devices=2, strategy="single_device"), dt.ConfigError, "devices", "2"),
    ("strategy unknown", lambda: fit(strategy="dpp_spawn"), dt.ConfigError, "strategy", "'ddp_spawn'"),
    ("precision unknown", lambda: fit(precision="bf16-mix"), dt.ConfigError, "precision", "bf16-mixed"),
    ("machines without launcher", lambda: fit(num_nodes=2), dt.LaunchError, "num-nodes", "torchrun"),
    ("argument unknown", lambda: fit(max_epoch=3), dt.ConfigError, "unknown-argument", "max_epochs"),
    ("argument long gone", lambda: fit(gpus=2), dt.ConfigError, "former-argument", "devices"),
    ("limit that means nothing", lambda: fit(limit_train_batches=1.5), dt.ConfigError, "limits", "1.5"),
    ("interval that means nothing", lambda: fit(val_check_interval=0), dt.ConfigError, "val-interval", "0"),
    ("interval without unit", lambda: fit(val_check_interval="500"), dt.ConfigError, "interval", "no unit"),
    ("interval of another unit", lambda: fit(log_every="5 stepz"), dt.ConfigError, "interval", "'steps'"),
    ("two intervals of the log", lambda: fit(log_every="5 steps", log_every_n_steps=5), dt.ConfigError, "log-interval", "5"),
    ("window of nothing", lambda: fit(accumulate_grad_batches={0: 0}), dt.ConfigError, "window-size", "{0: 0}"),
    ("clip algorithm", lambda: fit(gradient_clip_algorithm="max"), dt.ConfigError, "clip", "max"),
    ("no module", lambda: fit(nn.Linear(2, 2)), dt.HookError, "not-a-module", "Linear"),
    ("no training step", lambda: fit(NoStep()), dt.ConfigError, "no-step", "training_step"),
    ("text for a loss", lambda: fit(ReturnsText()), dt.StepOutputError, "step-output", "str"),
    ("vector for a loss", lambda: fit(ReturnsVector()), dt.StepOutputError, "loss", "[3]"),
    ("loss without graph", lambda: fit(ReturnsDetached()), dt.StepOutputError, "loss", "no graph"),
    ("dict without loss", lambda: fit(ReturnsDictWithoutLoss()), dt.StepOutputError, "step-output", "value"),
    ("strange parameters", lambda: fit(StrangeOptimizer()), dt.OptimizerError, "optimizer-parameters", "2 of 2"),
    ("no optimizer", lambda: fit(NoOptimizer()), dt.OptimizerError, "configure-optimizers", "str"),
    ("hook long gone", lambda: fit(FormerHook()), dt.HookError, "unknown-hook", "on_validation_epoch_end"),
    ("misspelt hook", lambda: fit(MisspeltHook()), dt.HookError, "unknown-hook", "on_train_epoch_end?"),
    ("misspelt callback", lambda: fit(callbacks=[MisspeltCallback()]), dt.HookError, "unknown-hook", "on_train_batch_end"),
    ("no callback", lambda: fit(callbacks=[3]), dt.HookError, "not-a-callback", "int"),
    ("no batches", lambda: fit(data=loader(0, sampler=range(0))), dt.DataError, "no-batches", "batch_size=4"),
    ("all batches dropped", lambda: fit(data=loader(3, drop_last=True)), dt.DataError, "no-batches", "drop_last"),
    ("text for a loader", lambda: fit(data="train.csv"), dt.DataError, "not-a-loader", "str"),
    ("no loader", lambda: dt.Trainer(**QUIET).fit(Model()), dt.ConfigError, "no-loader", "train_dataloader"),
    ("uneven policy", lambda: fit(uneven="pad"), dt.ConfigError, "uneven-policy", "pad"),
    ("method not prepared", call_unprepared, dt.MethodNotPreparedError, "method", "loss_of"),
    ("module not set up", lambda: fabric().no_backward_sync(nn.Linear(2, 2)), dt.ModelError, "not-set-up", "Linear"),
    ("set up twice", lambda: (own := fabric(), own.setup(own.setup(nn.Linear(2, 2)))), dt.ModelError, "setup-module", "already"),
    ("launched twice", lambda: fabric().launch(), dt.LaunchError, "launched-twice", "twice"),
    ("ranks not launched", lambda: dt.Fabric(accelerator="cpu", devices=2).device, dt.NotOpenError, "not-launched", "2"),
    ("window left", leave_a_window, dt.WindowError, "window-left", "1"),
    ("used outside of a run", lambda: Model().log("x", 1), dt.NotOpenError, "outside-run", "log"),
    ("extra not installed", lambda: import_extra("no_such", extra="plots", purpose="Plot"), dt.MissingExtraError, "missing-extra", "drivetrain[plots]"),
    ("seed", lambda: dt.seed_everything(-1), dt.ConfigError, "seed", "-1"),
]  # fmt: skip


@pytest.mark.parametrize(("act", "kind", "code", "text"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_bad_input_gets_a_clear_error(
    act: Callable[[], Any], kind: type[dt.DrivetrainError], code: str, text: str
) -> None:
    """A user would get a traceback from the depths, or no error at all."""
    with pytest.raises(kind) as caught:
        act()
    assert caught.value.code == code
    assert text in str(caught.value)
    assert caught.value.do, "says what is, but not what to do"


def test_an_iterable_data_set_that_does_not_shard_itself_is_refused_on_several_ranks() -> None:
    """Every rank would train on all of it."""
    from drivetrain.data.data_shard import DataShard
    from drivetrain.data.loader import Loader

    with pytest.raises(dt.DataError, match="shards_itself") as caught:
        Loader(DataLoader(Stream()), DataShard(0, 2), seed=0)
    assert caught.value.code == "iterable-not-sharded"


def test_an_error_keeps_its_parts_when_it_is_sent_to_another_process() -> None:
    """A rank's error would arrive without its code."""
    import pickle

    error = dt.UnevenDataError("what", code="uneven", do="do", rank=(3, 8))
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.code, type(again)) == (str(error), "uneven", dt.UnevenDataError)
    assert str(error).startswith("[uneven] [rank 3/8] what")


def test_weights_survive_a_step_that_raises() -> None:
    """An error in the middle of a window would leave half a step behind."""
    model = ReturnsText()
    before = model.net.weight.clone()
    with pytest.raises(dt.StepOutputError):
        fit(model)
    assert torch.equal(model.net.weight, before)


def test_tensor_data_is_used_for_the_cases() -> None:
    """The table above would test something else than it says."""
    assert isinstance(loader().dataset, TensorDataset)
