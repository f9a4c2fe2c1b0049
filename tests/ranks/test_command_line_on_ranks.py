"""`drivetrain fit` on several ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.ranks.launched_programs import run

pytestmark = pytest.mark.slow

MODULE = """
import torch
from torch.utils.data import DataLoader
from drivetrain import Module
from drivetrain.testing.fixtures import make_dataset, make_mlp

class Net(Module):
    def __init__(self, num_hidden: int = 4):
        super().__init__()
        self.net = make_mlp(num_hidden=num_hidden)
        self.drawn = torch.rand(1).item()

    def training_step(self, batch, batch_idx):
        return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def train_dataloader(self):
        return DataLoader(make_dataset(16), batch_size=4)

    def on_fit_end(self):
        print(f"rank {self.global_rank}: {self.drawn} {self.global_step} {len(self.net[0].weight)}")

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
"""


def test_every_rank_runs_the_same_command(tmp_path: Path) -> None:
    """Ranks would draw seeds of their own, read other arguments than the command, or each write a file."""
    (tmp_path / "nets.py").write_text(MODULE)
    config = {"trainer": {"devices": 2, "accelerator": "cpu", "max_epochs": 2, "enable_progress_bar": False}}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config))
    words = ("-m", "drivetrain", "fit", "--config", "run.yaml", "--model=nets.Net", "--model.num_hidden=3")
    code, out, err = run(*words, cwd=tmp_path)
    assert code == 0, err
    lines = sorted(line.split(" ", 2)[2] for line in out.splitlines() if line.startswith("rank"))
    assert len(lines) == 2 and lines[0] == lines[1] and lines[0].endswith(" 4 3")
    (saved,) = tmp_path.glob("drivetrain_logs/version_*/*onfig*.yaml")
    seed = yaml.safe_load(saved.read_text())["seed_everything"]
    assert {line for line in err.splitlines() if line.startswith("seed ")} == {f"seed {seed}"}
