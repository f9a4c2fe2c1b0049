"""How long until training begins: the import, a `Trainer`, and the first step of a fit on one rank.

python -m benchmarks.start_up [--rounds 7] [--out FILE.md]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.child import answer
from benchmarks.rounds import measure_rounds
from benchmarks.table import give_out, markdown, section, values_of

PARTS = {
    "torch": "import torch",
    "drivetrain": "import drivetrain, after that",
    "trainer": "Trainer(), the first",
    "again": "Trainer(), another",
    "first_step": "fit, until the end of the first step",
    "first_step_again": "likewise, of another Trainer",
}


def measure() -> dict[str, float]:
    """In a fresh interpreter, in milliseconds."""
    marks = [time.perf_counter()]
    import torch

    marks.append(time.perf_counter())
    import drivetrain

    marks.append(time.perf_counter())
    torch.set_num_threads(1)
    from benchmarks.training_model import loss_of, make_loader, make_model, make_optimizer

    class Classifier(drivetrain.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = make_model()

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            x, y = batch
            return loss_of(self.net(x), y)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return make_optimizer(self.net)

    class Clock(drivetrain.Callback):
        at = 0.0

        def on_step_end(self, trainer: Any, pl_module: Any) -> None:
            self.at = self.at or time.perf_counter()

    def start(directory: str) -> tuple[float, float]:
        clock, begin = Clock(), time.perf_counter()
        trainer = drivetrain.Trainer(
            accelerator="cpu", devices=1, max_steps=3, callbacks=[clock], default_root_dir=directory, logger=False,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        made = time.perf_counter()
        trainer.fit(module, loader)
        return made - begin, clock.at - made

    # What torch imports with the first optimizer is torch's: a hand-written loop has it before its first step, too.
    module, loader = Classifier(), make_loader(3)
    make_optimizer(module.net)
    with tempfile.TemporaryDirectory() as directory:
        (trainer, first_step), (again, first_step_again) = start(directory), start(directory)
    return {
        "torch": 1e3 * (marks[1] - marks[0]), "drivetrain": 1e3 * (marks[2] - marks[1]), "trainer": 1e3 * trainer,
        "again": 1e3 * again, "first_step": 1e3 * first_step, "first_step_again": 1e3 * first_step_again,
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> str:
    """Measure, print the section, write it if asked; return it."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(prog="python -m benchmarks.start_up")
    parser.add_argument("--rounds", type=int, default=7, help="fresh interpreters, after one that warms up")
    parser.add_argument("--out", help="also write the table here")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args(given)
    if asked.child:
        answer(measure)
        return ""
    readings = measure_rounds(
        ["start"],
        lambda _name: [sys.executable, "-m", "benchmarks.start_up", "--child"],
        num_rounds=asked.rounds + 1,
        show=lambda reading: f"{reading['first_step']:8.1f} ms to the first step",
    )["start"][1:]
    rows = []
    for key, label in PARTS.items():
        values = values_of(readings, key)
        rows.append([label, f"{statistics.median(values):.1f}", f"{min(values):.1f}"])
    table = markdown(("what", "median, ms", "least, ms"), rows)
    text = section("Until training begins", [table], [], module="benchmarks.start_up", arguments=given)
    give_out(text, asked.out)
    return text


if __name__ == "__main__":
    main()
