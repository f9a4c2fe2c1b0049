"""`python train.py`, and the other ways in which users start a run on several ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.ranks.launched_programs import run

pytestmark = pytest.mark.slow

MODULE = """
import json, sys
import torch
from torch.nn import functional
from torch.utils.data import DataLoader
import drivetrain
from drivetrain.testing.fixtures import make_dataset, make_mlp

class Net(drivetrain.Module):
    def __init__(self):
        super().__init__()
        self.net = make_mlp()

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = functional.cross_entropy(self.net(x), y)
        self.log("loss", loss, on_epoch=True)
        if FAILS and self.global_rank == 1 and self.global_step == 2:
            raise ValueError("the data of rank 1 are bad")
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", functional.cross_entropy(self.net(x), y))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)

FAILS = "fail" in sys.argv

def make_trainer(**options):
    options = {"enable_checkpointing": False, **options}
    return drivetrain.Trainer(
        accelerator="cpu", max_epochs=2, logger=False, enable_progress_bar=False, enable_model_summary=False, **options
    )

def fit(trainer, num_ranks=1):
    model = Net()
    data = make_dataset(50)
    loader = DataLoader(data, batch_size=8 // num_ranks)
    trainer.fit(model, loader, loader)
    return model

def report(trainer, model, **more):
    print(json.dumps({
        "weights": {name: value.tolist() for name, value in model.state_dict().items()},
        "metrics": {name: float(value) for name, value in trainer.callback_metrics.items()},
        "counters": [trainer.global_step, trainer.micro_step, trainer.current_epoch],
        **more,
    }))
"""
SCRIPT = """
print("before")  # runs in each process that reads the program
trainer = make_trainer(devices=int(sys.argv[1]), strategy="ddp")
model = fit(trainer, num_ranks=2)
if trainer.is_global_zero:
    report(trainer, model)
"""
FUNCTIONS = """
from drivetrain.callbacks.model_checkpoint import ModelCheckpoint
for strategy in ("ddp_spawn", "ddp_fork"):
    keeper = ModelCheckpoint(dirpath=f"kept_{strategy}", monitor="val_loss", save_top_k=1)
    trainer = make_trainer(devices=2, strategy=strategy, callbacks=[keeper], enable_checkpointing=True)
    model = fit(trainer, num_ranks=2)
    report(trainer, model, best=keeper.best_model_path, score=float(keeper.best_model_score))
again = trainer.validate(model, DataLoader(make_dataset(50), batch_size=8), verbose=False)
print(again[0]["val_loss"])
"""
MAIN = """
def main(fabric, scale, *, offset):
    model, optimizer = fabric.setup(*with_optimizer(make_mlp()))
    x, y = make_dataset(8)[fabric.global_rank * 4 : fabric.global_rank * 4 + 4]
    fabric.backward(functional.cross_entropy(model(x), y))
    optimizer.step()
    fabric.print("in rank", fabric.global_rank)
    return fabric.global_rank * scale + offset, model.original

def with_optimizer(module):
    return module, torch.optim.SGD(module.parameters(), lr=0.1)

fabric = drivetrain.Fabric(accelerator="cpu", devices=2)
value, model = fabric.launch(main, 10, offset=7)
alone, optimizer = with_optimizer(make_mlp())
functional.cross_entropy(alone(make_dataset(8)[:][0]), make_dataset(8)[:][1]).backward()
optimizer.step()
print(value, max((a - b).abs().max().item() for a, b in zip(model.parameters(), alone.parameters())) < 1e-12)
"""


def write(directory: Path, body: str) -> None:
    """A program as `train.py`."""
    (directory / "train.py").write_text(MODULE + body)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What one process makes of it."""
    directory = tmp_path_factory.mktemp("alone")
    write(directory, "trainer = make_trainer(devices=1)\nreport(trainer, fit(trainer))")
    code, out, err = run("train.py", cwd=directory)
    assert (code, err) == (0, "")
    return json.loads(out)


def check_equal(found: Any, alone: Any) -> None:
    """Weights, metrics and counters of a run are those of one process."""
    for name, value in alone["weights"].items():
        assert flat(found["weights"][name]) == pytest.approx(flat(value), abs=1e-10), name
    assert found["metrics"] == pytest.approx(alone["metrics"], abs=1e-6)
    assert found["counters"] == alone["counters"]


def flat(value: Any) -> list[float]:
    """The numbers of nested lists."""
    return [number for part in value for number in flat(part)] if isinstance(value, list) else [value]


def test_a_script_trains_on_two_ranks_as_in_one_process(tmp_path: Path, alone: Any) -> None:
    """`python train.py` with devices=2 would train another model, or print everything twice."""
    write(tmp_path, SCRIPT)
    code, out, err = run("train.py", "2", cwd=tmp_path)
    assert (code, err) == (0, "")
    *before, reported = out.splitlines()
    assert before == ["before"] * 3
    check_equal(json.loads(reported), alone)


def test_torchrun_trains_the_same_script(tmp_path: Path, alone: Any) -> None:
    """A script would have to know who starts it."""
    write(tmp_path, SCRIPT)
    code, out, err = run(
        "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "train.py", "2", cwd=tmp_path
    )
    assert code == 0, err
    *before, reported = out.splitlines()
    assert before == ["before"] * 2
    check_equal(json.loads(reported), alone)


def test_other_devices_than_torchrun_started_are_refused(tmp_path: Path) -> None:
    """The run would silently be of another size than was asked for."""
    write(tmp_path, SCRIPT)
    code, _, err = run(
        "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "train.py", "3", cwd=tmp_path
    )
    assert code != 0
    assert "LaunchError: [world-size]" in err and "3 ranks were asked for, but torchelastic started 2." in err


def test_a_failing_rank_ends_the_run_and_its_traceback_is_the_last_word(tmp_path: Path) -> None:
    """The other rank would wait for ever, or the reason would be somewhere far above."""
    write(tmp_path, SCRIPT)
    code, out, err = run("train.py", "2", "fail", cwd=tmp_path)
    assert code == 1
    assert "weights" not in out
    assert err.rstrip().endswith("ValueError: the data of rank 1 are bad")
    assert "rank 1 of 2 failed" in err


def test_spawned_and_forked_runs_bring_their_results_back(tmp_path: Path, alone: Any) -> None:
    """The model that was trained would stay in processes that are gone."""
    write(tmp_path, FUNCTIONS)
    code, out, err = run("train.py", cwd=tmp_path)
    assert code == 0, err
    *lines, again = out.splitlines()
    for strategy, line in zip(("ddp_spawn", "ddp_fork"), lines, strict=True):
        found = json.loads(line)
        check_equal(found, alone)
        assert Path(found["best"]).is_dir() and Path(found["best"]).parent.name == f"kept_{strategy}"
        assert found["score"] == pytest.approx(alone["metrics"]["val_loss"], abs=1e-6)
    assert float(again) == pytest.approx(alone["metrics"]["val_loss"], abs=1e-6)


def test_a_function_of_main_runs_on_the_ranks_and_returns_rank_0s_value(tmp_path: Path) -> None:
    """A script would need a guard, a module of its own, or a file to get its result from."""
    write(tmp_path, MAIN)
    code, out, err = run("train.py", cwd=tmp_path)
    assert (code, err) == (0, "")
    assert out.splitlines() == ["in rank 0", "7 True"]
