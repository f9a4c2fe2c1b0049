"""What the one message of a window costs: a step with it over a step without it, on 2 gloo ranks of this machine.

python -m benchmarks.agreement [--rounds 9] [--steps 150] [--width 64] [--window 1] [--out FILE.md]

Both loops run in one process of each rank, in turn, so that nothing but the message differs. Without it each rank takes
its own weight for the others' too, which is right here, where all are alike.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.child import answer
from benchmarks.rounds import run_child, say
from benchmarks.table import give_out, markdown, section
from benchmarks.two_ranks import free_port, launch_command

WARM_STEPS = 30


def main(arguments: Sequence[str] | None = None) -> str:
    """Measure, print the section, write it if asked; return it."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    asked = parse(given)
    if asked.child:
        answer(lambda: measure(asked))
        return ""
    command = launch_command("benchmarks.agreement", [*given, "--child"], port=free_port())
    reading = run_child(command, timeout_s=600)
    say("agreement: done")
    rows = [
        ["one message", f"{reading['calls_with']:.0f}", f"{reading['with']:.0f}", f"{reading['ratio']:.3f}"],
        ["none", f"{reading['calls_without']:.0f}", f"{reading['without']:.0f}", "1.000"],
    ]
    header = ("a step with", "collectives/step", "least median of a round, us", "median ratio of rounds")
    table = markdown(header, rows)
    text = section("The message of a window", [table], [], module="benchmarks.agreement", arguments=given)
    give_out(text, asked.out)
    return text


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.agreement")
    parser.add_argument("--rounds", type=int, default=9, help="of each loop, in turn")
    parser.add_argument("--steps", type=int, default=150, help="optimizer steps of a round")
    parser.add_argument("--width", type=int, default=64, help="of the perceptron")
    parser.add_argument("--window", type=int, default=1, help="micro-batches of a step, on each rank")
    parser.add_argument("--out", help="also write the table here")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def measure(asked: argparse.Namespace) -> dict[str, float] | None:
    """In each rank; rank 0 answers."""
    from drivetrain import Fabric
    from drivetrain.testing.comm_counter import CommCounter

    torch.set_num_threads(1)
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    width = asked.width
    net = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, 10))
    model, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=0.01))
    batch = (torch.randn(32, width), torch.randint(10, (32,)))
    collectives: Any = fabric.collectives
    send = collectives.start_agreement

    def alone(values: Sequence[float]) -> Callable[[], list[float]]:
        return lambda: [float(value) * collectives.world_size for value in values]

    def run(num_steps: int) -> list[float]:
        times = []
        batches = [batch] * (num_steps * asked.window)
        loader = fabric.setup_dataloaders(Repeated(batches), use_distributed_sampler=False)
        before = time.perf_counter()
        for window in fabric.windows(loader, model, optimizer, size=asked.window):
            for x, y in window:
                window.backward(functional.cross_entropy(model(x), y))
            now = time.perf_counter()
            times.append(now - before)
            before = now
        return times

    calls = {}
    medians: dict[str, list[float]] = {"with": [], "without": []}
    for number in range(asked.rounds + 1):
        for name, function in (("with", send), ("without", alone)):
            collectives.start_agreement = function
            fabric.barrier()
            counter = CommCounter()
            if number == 0:
                run(WARM_STEPS)
                with counter:
                    run(WARM_STEPS)
                calls[name] = counter.num_calls("allreduce_") / WARM_STEPS
                continue
            medians[name].append(1e6 * statistics.median(run(asked.steps)))
    fabric.close()
    if fabric_rank() != 0:
        return None
    ratios = [a / b for a, b in zip(medians["with"], medians["without"], strict=True)]
    return {
        "with": min(medians["with"]), "without": min(medians["without"]), "ratio": statistics.median(ratios),
        "calls_with": calls["with"], "calls_without": calls["without"],
    }  # fmt: skip


class Repeated:
    """A loader of batches that are there already, alike on all ranks."""

    batch_size = 32

    def __init__(self, batches: list[Any]) -> None:
        self.batches = batches

    def __iter__(self) -> Any:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


def fabric_rank() -> int:
    """This rank, as the launcher numbered it."""
    from drivetrain.cluster.read_cluster import current_cluster

    return current_cluster().rank


if __name__ == "__main__":
    main()
