"""What is due by time, samples or micro-batches is due on all ranks after the same step."""

from __future__ import annotations

from typing import Any

import pytest
from torch.utils.data import DataLoader

import drivetrain
from drivetrain.testing.fixtures import NumberedDataset, make_mlp
from tests.ranks.test_evaluation_on_ranks import Scored, make_trainer
from tests.ranks.test_uneven_ranks import UNEVEN, Stream


class Clocked(drivetrain.Callback):
    """A step takes another time on each rank; notes what happens after which step."""

    def __init__(self, seconds: list[float]) -> None:
        self.seconds = seconds
        self.noted: list[tuple[str, int]] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        trainer.progress.seconds += self.seconds[trainer.global_rank]

    def on_step_end(self, trainer: Any, pl_module: Any) -> None:
        if trainer.is_log_step:
            self.noted.append(("log", trainer.global_step))

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        self.noted.append(("validate", trainer.global_step))

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Any) -> None:
        self.noted.append(("save", trainer.global_step))


def train_by_time(seconds: list[float], directory: str) -> list[tuple[str, int]]:
    watch = Clocked(seconds)
    keeper = drivetrain.ModelCheckpoint(directory, every="300 s", save_top_k=-1)
    trainer = drivetrain.Trainer(
        accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False, strategy="ddp",
        max_epochs=2, num_sanity_val_steps=0, callbacks=[watch, keeper], val_check_interval="1000 s", log_every="200 s",
    )  # fmt: skip
    trainer.fit(Scored(), DataLoader(NumberedDataset(120), batch_size=2), DataLoader(NumberedDataset(8), batch_size=2))
    trainer._fabric.close()
    return watch.noted


@pytest.mark.parametrize("seconds", [[50.0, 1.0], [50.0, 500.0]])
def test_the_clock_of_rank_0_decides_for_all(ranks: Any, seconds: list[float], tmp_path: Any) -> None:
    """Ranks would validate or save after different steps, and wait for each other for ever."""
    first, second = ranks.run(train_by_time, seconds, str(tmp_path))
    assert first == second
    counts = {kind: sum(one == kind for one, _ in first) for kind in ("validate", "log", "save")}
    assert counts["validate"] == 3 and counts["log"] >= 10 and counts["save"] >= 7


def train_streams(shares: list[list[int]], uneven: str, every: Any) -> Any:
    watch = Clocked([0.0, 0.0])
    trainer = make_trainer(
        strategy="ddp", uneven=uneven, accumulate_grad_batches=3, max_epochs=2, val_check_interval=every,
        num_sanity_val_steps=0, callbacks=[watch],
    )  # fmt: skip
    module = Streamed()
    trainer.fit(module, DataLoader(Stream(shares), batch_size=2), DataLoader(NumberedDataset(8), batch_size=2))
    trainer._fabric.close()
    return watch.noted, trainer.progress.samples, trainer.progress.micro_step


class Streamed(Scored):
    """Trains on samples without a number, without statistics of batches."""

    def __init__(self) -> None:
        super().__init__()
        self.net = make_mlp()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.net(batch[0]).square().mean()


@pytest.mark.parametrize("every", ["10 samples", "4 micro-batches", 4])
@pytest.mark.parametrize("case", UNEVEN)
def test_uneven_streams_count_alike(ranks: Any, case: str, every: Any) -> None:
    """Each rank would count its own samples, and validate alone."""
    shares = UNEVEN[case]
    first, second = ranks.run(train_streams, shares, "join", every)
    assert first == second
    assert first[1] == 2 * sum(len(share) for share in shares)
    assert first[0]
