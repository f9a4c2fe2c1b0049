"""What lies between two epochs: from the last step of one to the first batch of the next.

python -m benchmarks.epoch_gap [--rounds 5] [--epochs 20] [--out FILE.md]

Epochs of 10 batches with 2 workers that last, a hand-written loop and a bare `Trainer` in turn.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader

from benchmarks.child import answer
from benchmarks.rounds import measure_rounds
from benchmarks.table import give_out, markdown, ratio_cells, section, values_of
from benchmarks.training_model import BATCH_SIZE, Cycle, loss_of, make_model, make_optimizer

NUM_BATCHES, NUM_WORKERS = 10, 2
KEY = "ms_between_epochs"


class Marks:
    """When steps begin and end."""

    def __init__(self) -> None:
        self.begins: list[float] = []
        self.ends: list[float] = []

    def gap_ms(self) -> float:
        """The median time between two epochs; the first one starts the workers."""
        lasts, firsts = self.ends[NUM_BATCHES - 1 :: NUM_BATCHES], self.begins[NUM_BATCHES::NUM_BATCHES]
        gaps = [begin - end for end, begin in zip(lasts, firsts, strict=False)]
        return 1e3 * statistics.median(gaps[1:])


def make_loader() -> DataLoader[Any]:
    """Shuffled, with workers that last."""
    samples = Cycle(NUM_BATCHES * BATCH_SIZE)
    return DataLoader(samples, BATCH_SIZE, shuffle=True, num_workers=NUM_WORKERS, persistent_workers=True)


def raw(num_epochs: int, marks: Marks) -> None:
    """Hand-written PyTorch."""
    model = make_model()
    optimizer = make_optimizer(model)
    loader = make_loader()
    for _ in range(num_epochs):
        for x, y in loader:
            marks.begins.append(time.perf_counter())
            loss_of(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            marks.ends.append(time.perf_counter())


def drivetrain_bare(num_epochs: int, marks: Marks) -> None:
    """drivetrain's `Trainer`, everything switched off."""
    import drivetrain

    class Classifier(drivetrain.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = make_model()

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            marks.begins.append(time.perf_counter())
            x, y = batch
            return loss_of(self.net(x), y)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return make_optimizer(self.net)

        def on_before_zero_grad(self, optimizer: Any) -> None:
            marks.ends.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as directory:
        drivetrain.Trainer(
            max_epochs=num_epochs, accelerator="cpu", devices=1, default_root_dir=directory, logger=False,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        ).fit(Classifier(), make_loader())  # fmt: skip


LOOPS: dict[str, Callable[[int, Marks], None]] = {"raw": raw, "drivetrain_bare": drivetrain_bare}
LABELS = {"raw": "hand-written PyTorch", "drivetrain_bare": "drivetrain Trainer, bare"}


def measure(name: str, num_epochs: int) -> dict[str, float]:
    """One of them, in a process of its own."""
    torch.set_num_threads(1)
    marks = Marks()
    LOOPS[name](num_epochs, marks)
    return {KEY: marks.gap_ms()}


def main(arguments: Sequence[str] | None = None) -> str:
    """Measure, print the section, write it if asked; return it."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(prog="python -m benchmarks.epoch_gap")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each loop")
    parser.add_argument("--epochs", type=int, default=20, help="of a measurement")
    parser.add_argument("--out", help="also write the table here")
    parser.add_argument("--child", choices=LOOPS, help=argparse.SUPPRESS)
    asked = parser.parse_args(given)
    if asked.child:
        answer(lambda: measure(asked.child, asked.epochs))
        return ""
    readings = measure_rounds(
        list(LOOPS),
        lambda name: [sys.executable, "-m", "benchmarks.epoch_gap", "--epochs", str(asked.epochs), "--child", name],
        num_rounds=asked.rounds,
        show=lambda reading: f"{reading[KEY]:8.2f} ms",
    )
    rows = []
    for name, label in LABELS.items():
        values = values_of(readings[name], KEY)
        cells = ratio_cells(readings[name], readings["raw"], KEY)
        rows.append([label, f"{statistics.median(values):.2f}", f"{min(values):.2f}", *cells])
    header = ("loop", "median, ms", "least, ms", "of minima", "ratio by round: min / median / max")
    text = section("Between two epochs", [markdown(header, rows)], [], module="benchmarks.epoch_gap", arguments=given)
    give_out(text, asked.out)
    return text


if __name__ == "__main__":
    main()
