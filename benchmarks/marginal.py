"""What one more logged value, and one more callback, cost a step.

python -m benchmarks.marginal [--rounds 5] [--steps 2000] [--out FILE.md]

The training of `overhead_loops` in a `Trainer`: with one logged value and with eleven, with no callback and with
fifty that have one hook. One of them is the difference of the minima over the number.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks.overhead import KEY
from benchmarks.rounds import measure_rounds
from benchmarks.table import give_out, markdown, section, values_of
from benchmarks.training_model import StepClock, loss_of, make_loader, make_model, make_optimizer

NUM_VALUES, NUM_CALLBACKS = 10, 50

# what one more of it is called: the loop with few, the one with more, and how many more
PAIRS = {
    "a logged value": ("one_value", "more_values", NUM_VALUES),
    "a callback with one hook": ("no_callback", "more_callbacks", NUM_CALLBACKS),
}


def train(num_steps: int, clock: StepClock, *, num_values: int, num_callbacks: int) -> float:
    """Train with so many logged values and callbacks."""
    import drivetrain

    class Classifier(drivetrain.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = make_model()

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            clock.tick()
            x, y = batch
            loss = loss_of(self.net(x), y)
            for name in names:
                self.log(name, loss)
            self.last_loss = loss.detach()
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return make_optimizer(self.net)

    class Counter(drivetrain.Callback):
        num_batches = 0

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            self.num_batches += 1

    names = [f"value_{index}" for index in range(num_values)]
    module = Classifier()
    with tempfile.TemporaryDirectory() as directory:
        trainer = drivetrain.Trainer(
            max_epochs=1, accelerator="cpu", devices=1, default_root_dir=directory, logger=bool(num_values),
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
            callbacks=[Counter() for _ in range(num_callbacks)],
        )  # fmt: skip
        trainer.fit(module, make_loader(num_steps))
    return float(module.last_loss)


LOOPS: dict[str, Callable[[int, StepClock], float]] = {
    "one_value": lambda steps, clock: train(steps, clock, num_values=1, num_callbacks=0),
    "more_values": lambda steps, clock: train(steps, clock, num_values=1 + NUM_VALUES, num_callbacks=0),
    "no_callback": lambda steps, clock: train(steps, clock, num_values=0, num_callbacks=0),
    "more_callbacks": lambda steps, clock: train(steps, clock, num_values=0, num_callbacks=NUM_CALLBACKS),
}


def main(arguments: Sequence[str] | None = None) -> str:
    """Measure, print the section, write it if asked; return it."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(prog="python -m benchmarks.marginal")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each loop")
    parser.add_argument("--steps", type=int, default=2000, help="optimizer steps of a measurement")
    parser.add_argument("--out", help="also write the table here")
    asked = parser.parse_args(given)
    program = (
        "from benchmarks.marginal import LOOPS; from benchmarks.overhead_loops import measure_peer; measure_peer(LOOPS)"
    )
    readings = measure_rounds(
        list(LOOPS),
        lambda name: [sys.executable, "-c", program, name, "--steps", str(asked.steps)],
        num_rounds=asked.rounds,
        show=lambda reading: f"{reading[KEY]:8.1f} µs/step",
    )
    rows = []
    for what, (few, more, number) in PAIRS.items():
        fewer, many = values_of(readings[few], KEY), values_of(readings[more], KEY)
        by_round = [(b - a) / number for a, b in zip(fewer, many, strict=False)]
        least = (min(many) - min(fewer)) / number
        rows.append([what, f"{least:.2f}", f"{statistics.median(by_round):.2f}"])
    table = markdown(("one more", "µs/step, of minima", "µs/step, median of rounds"), rows)
    text = section("One more of it", [table], [], module="benchmarks.marginal", arguments=given)
    give_out(text, asked.out)
    return text


if __name__ == "__main__":
    main()
