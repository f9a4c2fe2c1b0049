"""How long training stops for a checkpoint that is written beside it, over one that it waits for.

python -m benchmarks.async_save [--megabytes 256] [--rounds 5] [--directory DIR] [--out FILE.md]

A stack of linear layers with AdamW on one rank: three tensors for each parameter are saved. In each round: some steps
alone, a save that waits, a save beside training with as many steps as it takes. The slowest step of a round is set
against the median step alone of that round, since the speed of a shared machine changes from round to round; how slow
the slowest step alone is says how much of it is the machine.

glibc is told to keep what is freed. As it is set by default it gives the memory of gradients back to the system after a
step or keeps it, as the heap happens to lie: a step with 80,000 page faults takes 1.6 times as long as one with none,
beside a save and without one.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.child import answer
from benchmarks.rounds import run_child, say
from benchmarks.table import give_out, markdown, section

WIDTH = 1024
NUM_STEPS = 30
KEEPS_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}
MOST = 1.5  # a step beside a save, over the median alone


def main(arguments: Sequence[str] | None = None) -> str:
    """Measure, print the section, write it if asked; return it."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    asked = parse(given)
    if asked.child:
        answer(lambda: measure(asked))
        return ""
    reading = run_child(
        [sys.executable, "-m", "benchmarks.async_save", *given, "--child"], timeout_s=900, environment=KEEPS_MEMORY
    )
    say("async_save: done")
    rows = [
        ["a save that waits", f"{reading['waited']:.3f}", "1.000"],
        ["training stops for a save beside it", f"{reading['blocked']:.3f}", f"{reading['blocked_ratio']:.3f}"],
        ["... until it is there", f"{reading['beside']:.3f}", f"{reading['beside'] / reading['waited']:.3f}"],
    ]
    steps = [
        [
            name, f"{reading[key] * 1e3:.1f}", f"{reading[f'{key}_ratio']:.2f}", f"{reading[f'{key}_worst']:.2f}",
            f"{reading[f'{key}_met']:.0f} of {asked.rounds}",
            f"{reading[f'{key}_slow']:.0f} of {reading[f'{key}_num']:.0f}",
        ]
        for key, name in (("usual", "alone"), ("during", "while a checkpoint is written"))
    ]  # fmt: skip
    tables = [
        markdown((f"{reading['megabytes']:.0f} MB", "seconds, median", "over a save that waits"), rows),
        markdown(
            (
                "a step",
                "median, ms",
                "slowest of a round, over its median alone",
                "at worst",
                f"rounds below {MOST}",
                f"steps from {MOST} on",
            ),
            steps,
        ),
    ]
    text = section("A checkpoint beside training", tables, [], module="benchmarks.async_save", arguments=given)
    give_out(text, asked.out)
    return text


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.async_save")
    parser.add_argument("--megabytes", type=int, default=256, help="of a checkpoint, about")
    parser.add_argument("--full", action="store_true", help="a checkpoint of 1 GB")
    parser.add_argument("--rounds", type=int, default=5, help="after one that warms up")
    parser.add_argument("--directory", help="where checkpoints go; by default a temporary directory")
    parser.add_argument("--out", help="also write the table here")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def measure(asked: argparse.Namespace) -> dict[str, float]:
    """All rounds, in one process."""
    from drivetrain import Fabric

    torch.set_num_threads(1)
    megabytes = 1024 if asked.full else asked.megabytes
    num_layers = max(1, round(megabytes * 1e6 / (3 * 4 * WIDTH * WIDTH)))
    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    net = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(num_layers)))
    model, optimizer = fabric.setup(net, torch.optim.AdamW(net.parameters(), fused=True))
    state = {"model": model, "optimizer": optimizer}
    batch = torch.randn(8, WIDTH)
    directory = Path(tempfile.mkdtemp(prefix="drivetrain-benchmark-", dir=asked.directory))

    def step() -> float:
        begin = time.perf_counter()
        fabric.backward(model(batch).pow(2).mean())
        optimizer.step()
        optimizer.zero_grad()
        return time.perf_counter() - begin

    figures: dict[str, list[float]] = {"waited": [], "blocked": [], "beside": [], "usual": [], "during": []}
    rounds: dict[str, list[list[float]]] = {"usual": [], "during": []}  # steps, over the median alone
    try:
        for number in range(asked.rounds + 1):
            made = one_round(fabric, state, step, directory)
            for name, values in made.items() if number else ():
                figures[name] += values
            for name, ratios in rounds.items() if number else ():
                ratios.append([seconds / statistics.median(made["usual"]) for seconds in made[name]])
    finally:
        fabric.close()
        shutil.rmtree(directory, ignore_errors=True)
    size_bytes = sum(p.nbytes for p in net.parameters()) * 3
    result = {name: statistics.median(values) for name, values in figures.items()}
    result["megabytes"] = size_bytes / 1e6
    result["blocked_ratio"] = result["blocked"] / result["waited"]
    for name, ratios in rounds.items():
        slowest = [max(one) for one in ratios]
        result |= {f"{name}_ratio": statistics.median(slowest), f"{name}_worst": max(slowest)}
        result[f"{name}_met"] = float(sum(ratio < MOST for ratio in slowest))
        result[f"{name}_slow"] = float(sum(ratio >= MOST for one in ratios for ratio in one))
        result[f"{name}_num"] = float(sum(map(len, ratios)))
    return result


def one_round(fabric: Any, state: dict[str, Any], step: Any, directory: Path) -> dict[str, list[float]]:
    """Steps alone, a save that waits, a save beside steps."""
    usual = [step() for _ in range(NUM_STEPS)]
    begin = time.perf_counter()
    fabric.save(directory / "waited", state)
    waited = time.perf_counter() - begin
    begin = time.perf_counter()
    handle = fabric.save(directory / "beside", state, wait=False)
    blocked = time.perf_counter() - begin
    during = []
    while not handle.is_done:
        during.append(step())
        handle.check()
    return {
        "usual": usual, "waited": [waited], "blocked": [blocked], "beside": [time.perf_counter() - begin],
        "during": during or [0.0],
    }  # fmt: skip


if __name__ == "__main__":
    main()
