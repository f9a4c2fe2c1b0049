"""Deeper paths of imports."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest
import torch

import drivetrain
import drivetrain.lightning as L
from drivetrain import MissingNameError
from drivetrain.lightning import functions
from drivetrain.lightning.absent import ABSENT
from drivetrain.lightning.paths import _PATHS, _SAME
from tests.arch.source_tree import ROOT
from tests.unit.trainer.runs import Classifier, fit


@pytest.mark.parametrize("path", [*_PATHS, *_SAME])
def test_every_path_leads_to_its_names(path: str) -> None:
    """A script would end where it imports."""
    if path.endswith("cli"):
        pytest.importorskip("jsonargparse")
    module = importlib.import_module(f"drivetrain.lightning.{path}")
    assert module.__name__ == f"drivetrain.lightning.{path}"
    names = getattr(module, "__all__", None) or ["STEP_OUTPUT"]
    assert all(getattr(module, name) is not None for name in names)


def test_names_of_deeper_paths_are_the_same_classes() -> None:
    """A copy would be another class, and refused."""
    import drivetrain.lightning.loggers.wandb
    from drivetrain.lightning.callbacks.early_stopping import EarlyStopping
    from drivetrain.lightning.callbacks.progress.rich_progress import RichProgressBar
    from drivetrain.lightning.core.module import LightningModule
    from drivetrain.lightning.fabric import Fabric
    from drivetrain.lightning.fabric.loggers import CSVLogger as FabricLogger
    from drivetrain.lightning.loggers.csv_logs import CSVLogger
    from drivetrain.lightning.pytorch.callbacks.model_checkpoint import ModelCheckpoint
    from drivetrain.lightning.pytorch.utilities.types import STEP_OUTPUT  # noqa: F401
    from drivetrain.lightning.utilities.exceptions import MisconfigurationException

    from drivetrain.lightning import trainer as trainers

    assert EarlyStopping is drivetrain.EarlyStopping and RichProgressBar is drivetrain.RichProgressBar
    assert LightningModule is drivetrain.Module and Fabric is drivetrain.Fabric
    assert CSVLogger is drivetrain.CSVLogger is FabricLogger and ModelCheckpoint is drivetrain.ModelCheckpoint
    assert trainers.Trainer is L.pytorch.trainer.trainer.Trainer is drivetrain.Trainer
    assert MisconfigurationException is drivetrain.ConfigError
    assert drivetrain.lightning.loggers.wandb.WandbLogger is drivetrain.WandbLogger


def test_a_path_is_there_in_a_new_process_and_costs_nothing() -> None:
    """It would be found only after its folder was imported; or all that it names be imported with it."""
    program = (
        "import sys; import drivetrain.lightning.pytorch.callbacks.early_stopping as es; "
        "from drivetrain.lightning.callbacks import model_checkpoint; print('torch' in sys.modules, es.EarlyStopping)"
    )
    environment = {"PYTHONPATH": str(ROOT / "src")}
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert result.stdout.startswith("False <class 'drivetrain.callbacks.early_stopping.EarlyStopping'>"), result.stderr


@pytest.mark.parametrize("name", sorted(ABSENT))
def test_a_name_that_is_not_there_says_what_to_use(name: str) -> None:
    """An ImportError that says nothing."""
    with pytest.raises(MissingNameError, match=f"no {name}") as caught:
        exec(f"from drivetrain.lightning.strategies import {name}")
    assert isinstance(caught.value, ImportError) and ABSENT[name] in str(caught.value)
    assert caught.value.code == "missing-name"


def test_an_unknown_path_is_an_import_error() -> None:
    """A script's own fallback would not be tried."""
    for path in ("callbacks.no_such", "no_such", "callbacks.timer.no_such"):
        with pytest.raises(ImportError, match="no_such"):
            importlib.import_module(f"drivetrain.lightning.{path}")


def test_states_are_those_of_the_trainer() -> None:
    """A callback that asks what runs would find that nothing does."""
    from drivetrain.lightning.trainer.states import RunningStage, TrainerFn

    class Look(Classifier):
        def on_train_start(self) -> None:
            seen.append((self.trainer.state.fn, self.trainer.state.stage))

    seen: list[object] = []
    fit(Look())
    assert seen == [(TrainerFn.FITTING, RunningStage.TRAINING)] == [("fit", "train")]


def test_small_functions_of_utilities() -> None:
    """A script would have to bring its own."""
    data = {"a": [1, (2.0, "x")], "b": torch.ones(1)}
    assert functions.apply_to_collection(data, (int, float), lambda value, by: value * by, 3)["a"] == [3, (6.0, "x")]
    state = torch.get_rng_state()
    with functions.isolate_rng():
        torch.rand(3)
    assert torch.equal(torch.get_rng_state(), state)
    layer = torch.nn.Linear(2, 1, bias=False)
    (layer(torch.tensor([[3.0, 4.0]]))).sum().backward()
    norms = functions.grad_norm(layer, 2)
    assert {name: float(norm) for name, norm in norms.items()} == {
        "grad_2_norm/weight": 5.0, "grad_2_norm_total": 5.0,
    }  # fmt: skip
    assert functions.is_overridden("training_step", Classifier(), drivetrain.Module)
    assert not functions.is_overridden("on_fit_start", Classifier(), drivetrain.Module)
    assert functions.rank_zero_experiment(lambda self: 3)(None) == 3


def test_the_file_system_of_a_path(tmp_path: object) -> None:
    """A script that looks for its files would fail."""
    pytest.importorskip("fsspec")
    assert functions.get_filesystem(str(tmp_path)).exists(str(tmp_path))
