"""Scripts that import the familiar names."""

from __future__ import annotations

import importlib
import subprocess
import sys
from typing import Any

import pytest
import torch

import drivetrain
import drivetrain.lightning as L
from tests.arch.source_tree import ROOT
from tests.unit.trainer.runs import QUIET, loader

NOT_OF_SCRIPTS = (
    ".absent", ".ddp_strategy", ".deepspeed_settings", ".deepspeed_strategy", ".familiar", ".familiar_arguments",
    ".fsdp_strategy", ".functions", ".model_parallel_strategy", ".outside", ".paths", ".types",
)  # fmt: skip
MODULES = sorted(
    ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")
    for path in (ROOT / "src" / "drivetrain" / "lightning").rglob("*.py")
)


@pytest.mark.parametrize("module", [name for name in MODULES if not name.endswith(NOT_OF_SCRIPTS)])
def test_every_name_leads_somewhere(module: str) -> None:
    """A script would end where it imports."""
    if module.endswith(".cli"):
        pytest.importorskip("jsonargparse")
    loaded = importlib.import_module(module)
    assert loaded.__all__ and all(getattr(loaded, name) is not None for name in loaded.__all__)


def test_the_familiar_names_are_drivetrains_own_classes() -> None:
    """A copy would be another class, and refused."""
    from drivetrain.lightning.utilities.exceptions import MisconfigurationException

    from drivetrain.lightning.callbacks import ModelCheckpoint
    from drivetrain.lightning.strategies import SingleDeviceStrategy
    from drivetrain.lightning.utilities import rank_zero_only
    from drivetrain.lightning.utilities.types import STEP_OUTPUT

    assert L.LightningModule is drivetrain.Module and L.LightningDataModule is drivetrain.DataModule
    assert ModelCheckpoint is drivetrain.ModelCheckpoint is L.callbacks.ModelCheckpoint
    assert SingleDeviceStrategy is drivetrain.SingleDevice and MisconfigurationException is drivetrain.ConfigError
    assert rank_zero_only is drivetrain.rank_zero_only and STEP_OUTPUT is Any


def test_a_name_that_is_not_there_says_where_to_look() -> None:
    """An ImportError that says nothing."""
    with pytest.raises(AttributeError, match="docs/protocol.md"):
        L.no_such_name  # noqa: B018
    with pytest.raises(ImportError):
        from drivetrain.lightning.loggers import LitLogger  # noqa: F401


def test_a_script_with_the_familiar_names_runs() -> None:
    """A change of the import would not be enough."""

    class Lit(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(8, 4).double()

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.layer(batch[0]).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    trainer = L.Trainer(**QUIET, max_epochs=1)
    trainer.fit(Lit(), loader(8))
    assert trainer.global_step == 2


def test_to_import_it_imports_nothing_else() -> None:
    """It would take as long as everything that it names."""
    program = "import sys, drivetrain.lightning; print('torch' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(ROOT / "src")},
    )
    assert result.stdout == "False\n"
