"""How far the gradient of an optimizer step is from that of one full batch, over a grid of windows; and its syncs.

python -m benchmarks.grid [--ranks 1,2,4] [--out FILE.md]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from benchmarks.rounds import say
from benchmarks.table import give_out, markdown, section
from drivetrain.testing.rank_runner import RankRunner
from tests.ranks.window_grid import CUTS, REMAINDERS, STRATEGIES, Judgement, grid_cases, measure
from tests.ranks.window_runs import WEIGHTS

HEADER = (
    "strategy", "ranks", "runs", "worst gradient", "worst loss", "worst parameter", "windows", "gradient syncs",
    "optimizer steps", "small messages", "not right",
)  # fmt: skip


def cells(found: Judgement) -> list[str]:
    """The figures of a row."""
    differences = [f"{one:.1e}" for one in (found.worst, found.worst_loss, found.worst_parameter)]
    counts = [found.num_windows, found.num_syncs, found.num_steps, found.num_messages, len(found.problems)]
    return [str(found.num_cases), *differences, *map(str, counts)]


def main(arguments: Sequence[str] | None = None) -> str:
    """Measure, print the section, write it if asked; return it."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(prog="python -m benchmarks.grid")
    parser.add_argument("--ranks", default="1,2,4", help="numbers of ranks")
    parser.add_argument("--out", help="also write the table here")
    asked = parser.parse_args(given)
    worlds = [int(number) for number in asked.ranks.split(",")]
    rows = []
    with RankRunner(max(worlds)) as runner:
        for strategy in STRATEGIES:
            if not strategy.is_known:
                say(f"there is no strategy {strategy.name!r}: left out")
                continue
            for world in [world for world in strategy.worlds if world in worlds]:
                found = measure(runner, strategy, list(grid_cases(world)), world=world)
                for problem in found.problems[:10]:
                    say(problem)
                label = f"{strategy.name}, {str(strategy.dtype).removeprefix('torch.')}"
                rows.append([label, str(world), *cells(found)])
                say(f"{label}, {world} ranks: {found.num_cases} runs, worst gradient {found.worst:.1e}")
    cuts = ", ".join(f"{batch_size}x{size}" for batch_size, size in CUTS)
    notes = [
        f"One epoch of SGD for each of {len(CUTS)} cuts of a window of 8 samples a rank (samples x micro-batches: "
        f"{cuts}), {len(REMAINDERS)} remainders (0 to 7 samples in the last window, on all ranks "
        f"together) and {len(WEIGHTS)} kinds of weights ({', '.join(WEIGHTS)}), over `fabric.windows`; some of them "
        "also with a `Trainer`.",
        "Differences are the largest of any element, on any rank, to plain PyTorch in one process in float64, with one "
        "full batch for each step. Gradients are those that the optimizer sees.",
        "Windows in which no sample has any weight are synced and make no step. A small message holds the weights.",
    ]
    text = section("Grid of windows", [markdown(HEADER, rows)], notes, module="benchmarks.grid", arguments=given)
    give_out(text, asked.out)
    return text


if __name__ == "__main__":
    main()
