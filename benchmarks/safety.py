"""What a step pays for safety: ranks watch each other, decide together, and checkpoints are hashed; or none of that.

python -m benchmarks.safety [--rounds 5] [--steps 200] [--step-ms 20] [--save-every 50] [--out FILE.md]

Both loops run in one process of each rank, in turn. They save as often, beside training. Without safety a rank takes
its own part of a decision for the others' too, which is right here, where all are alike, and files get no hashes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.agreement import Repeated, fabric_rank
from benchmarks.child import answer
from benchmarks.rounds import run_child, say
from benchmarks.table import give_out, markdown, section
from benchmarks.two_ranks import NUM_RANKS, free_port, launch_command

WARM_STEPS = 20
WIDTH = 512


def main(arguments: Sequence[str] | None = None) -> str:
    """Measure, print the section, write it if asked; return it."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    asked = parse(given)
    if asked.child:
        answer(lambda: measure(asked))
        return ""
    reading = run_child(launch_command("benchmarks.safety", [*given, "--child"], port=free_port()), timeout_s=900)
    say("safety: done")
    rows = []
    for name, label in (("on", "watched, agreed, hashed"), ("off", "none of it")):
        figures = [f"{reading[f'{name}_{figure}']:.2f}" for figure in ("calls", "median", "mean")]
        ratios = [reading[f"{figure}_ratio"] if name == "on" else 1.0 for figure in ("median", "mean")]
        rows.append([label, *figures, *(f"{ratio:.3f}" for ratio in ratios)])
    header = ("a step", "collectives/step", "median, ms", "mean, ms", "ratio of medians", "ratio of means")
    by_round = " / ".join(f"{ratio:.3f}" for ratio in sorted(reading["ratios"]))
    notes = [
        f"{NUM_RANKS} gloo ranks under torchrun, where they watch each other over a store (the dearer of two ways). "
        f"{reading['samples']} samples of a {WIDTH}-{2 * WIDTH}-{WIDTH} perceptron are a step.",
        f"{asked.rounds} rounds of {asked.steps} steps of each, in turn; a checkpoint is written beside every "
        f"{asked.save_every} steps, which is in the mean. Medians of rounds; ratios of medians by round: {by_round}.",
    ]
    text = section("Safety", [markdown(header, rows)], notes, module="benchmarks.safety", arguments=given)
    give_out(text, asked.out)
    return text


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.safety")
    parser.add_argument("--rounds", type=int, default=5, help="of each loop, in turn")
    parser.add_argument("--steps", type=int, default=200, help="optimizer steps of a round")
    parser.add_argument("--step-ms", type=float, default=20.0, help="about how long a step takes")
    parser.add_argument("--save-every", type=int, default=50, help="steps between checkpoints")
    parser.add_argument("--out", help="also write the table here")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def measure(asked: argparse.Namespace) -> dict[str, Any] | None:
    """In each rank; rank 0 answers."""
    from drivetrain import Fabric

    torch.set_num_threads(1)
    fabric = Fabric(accelerator="cpu", devices=NUM_RANKS, strategy="ddp")
    fabric.launch()
    net = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH))
    loop = Loop(fabric, *fabric.setup(net, torch.optim.SGD(net.parameters(), lr=0.01)))
    loop.run(WARM_STEPS)
    for _ in range(3):  # a part of a step does not grow with the batch
        own_ms = 1e3 * statistics.median(loop.run(WARM_STEPS))
        took_ms = fabric.broadcast(own_ms)
        loop.num_samples = max(1, round(loop.num_samples * min(8.0, asked.step_ms / took_ms)))
    calls: dict[str, float] = {}
    times: dict[str, list[list[float]]] = {"on": [], "off": []}
    with tempfile.TemporaryDirectory() as name:
        place = fabric.broadcast(name)
        for number in range(asked.rounds + 1):
            for mode in ("on", "off") if number % 2 else ("off", "on"):
                fabric.barrier()
                with safety(fabric, is_on=mode == "on"):
                    if number == 0:
                        calls[mode] = loop.count_collectives(WARM_STEPS)
                        loop.run(WARM_STEPS, save_every=5, place=place)
                    else:
                        times[mode].append(loop.run(asked.steps, save_every=asked.save_every, place=place))
        fabric.barrier()
    samples = loop.num_samples
    fabric.close()
    return None if fabric_rank() != 0 else summary(times, calls) | {"samples": samples}


def summary(times: dict[str, list[list[float]]], calls: dict[str, float]) -> dict[str, Any]:
    """The figures of the table."""
    found: dict[str, Any] = {}
    by_round = {}
    for figure, of in (("median", statistics.median), ("mean", statistics.fmean)):
        by_round[figure] = {mode: [1e3 * of(one) for one in rounds] for mode, rounds in times.items()}
        pairs = zip(by_round[figure]["on"], by_round[figure]["off"], strict=True)
        found[f"{figure}_ratio"] = statistics.median(a / b for a, b in pairs)
        for mode, values in by_round[figure].items():
            found[f"{mode}_{figure}"] = statistics.median(values)
    found["ratios"] = [a / b for a, b in zip(by_round["median"]["on"], by_round["median"]["off"], strict=True)]
    return found | {f"{mode}_calls": number for mode, number in calls.items()}


class Loop:
    """Steps of one micro-batch, on data that is there already."""

    def __init__(self, fabric: Any, model: Any, optimizer: Any) -> None:
        self.fabric, self.model, self.optimizer = fabric, model, optimizer
        self.num_samples = 64

    def run(self, num_steps: int, *, save_every: int = 0, place: str = "") -> list[float]:
        """Seconds of each step.

        Ranks: all.
        """
        times: list[float] = []
        data = torch.randn(self.num_samples, WIDTH)
        loader = self.fabric.setup_dataloaders(Repeated([data] * num_steps), use_distributed_sampler=False)
        before = time.perf_counter()
        for window in self.fabric.windows(loader, self.model, self.optimizer, size=1):
            for batch in window:
                window.backward(functional.mse_loss(self.model(batch), batch))
            if save_every and len(times) % save_every == save_every - 1:
                state = {"model": self.model, "optimizer": self.optimizer, "step": len(times)}
                self.fabric.save(Path(place) / "checkpoint", state, wait=False)
            now = time.perf_counter()
            times.append(now - before)
            before = now
        self.fabric.saves.settle()
        return times

    def count_collectives(self, num_steps: int) -> float:
        """Collectives of one step, without those that begin and end a loop."""
        from drivetrain.testing.comm_counter import CommCounter

        totals = []
        for length in (num_steps, 2 * num_steps):
            with CommCounter() as counter:
                self.run(length)
            totals.append(sum(counter.calls.values()))
        return (totals[1] - totals[0]) / num_steps


@contextmanager
def safety(fabric: Any, *, is_on: bool) -> Iterator[None]:
    """Everything as it is, or nothing of it, for a block."""
    from drivetrain.checkpoint import write
    from drivetrain.cluster.read_cluster import current_cluster
    from drivetrain.launch.store_watch import begin_store_watch, end_store_watch

    if is_on:
        yield
        return
    collectives: Any = fabric.collectives
    found = collectives.start_agreement, write.hashlib, write.Checksum

    def alone(values: Sequence[float]) -> Callable[[], list[float]]:
        return lambda: [float(value) * collectives.world_size for value in values]

    end_store_watch()
    collectives.start_agreement = alone
    write.hashlib, write.Checksum = SimpleNamespace(sha256=Unhashed), Unhashed  # type: ignore[assignment, misc]
    try:
        yield
    finally:
        collectives.start_agreement, write.hashlib, write.Checksum = found  # type: ignore[misc]
        begin_store_watch(current_cluster(), fabric.patience, fabric.failure_folder)


class Unhashed:
    """In the place of a hash."""

    def update(self, data: Any) -> None:
        """Look at nothing."""

    def hexdigest(self) -> str:
        """The same for everything."""
        return "0" * 64


if __name__ == "__main__":
    main()
