"""What one more logged value, and one more callback, cost a step.

python -m benchmarks.marginal [--rounds 5] [--steps 2000] [--out FILE.md]

The training of `overhead_loops` in a `Trainer`: with one logged value and with eleven, with no callback and with
fifty that have one hook. One of them is the difference of the minima over the number.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.overhead import KEY
from benchmarks.overhead_loops import OFF, train_with
from benchmarks.rounds import measure_rounds
from benchmarks.table import give_out, markdown, section, values_of
from benchmarks.training_model import StepClock, make_loader

NUM_VALUES, NUM_CALLBACKS = 10, 50

# what one more of it is called: the loop with few, the one with more, and how many more
PAIRS = {
    "a logged value": ("one_value", "more_values", NUM_VALUES),
    "a callback with one hook": ("no_callback", "more_callbacks", NUM_CALLBACKS),
}


def train(num_steps: int, clock: StepClock, *, num_values: int, num_callbacks: int) -> float:
    """Train with so many logged values and callbacks."""
    import drivetrain

    class Counter(drivetrain.Callback):
        num_batches = 0

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            self.num_batches += 1

    options = {**OFF, "logger": bool(num_values), "callbacks": [Counter() for _ in range(num_callbacks)]}
    names = [f"value_{index}" for index in range(num_values)]
    return float(train_with("drivetrain", make_loader(num_steps), clock, names=names, devices=1, **options).last_loss)


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
