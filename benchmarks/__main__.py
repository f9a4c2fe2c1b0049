"""All benchmarks, or those that are named, one after the other.

python -m benchmarks [NAME ...] [--quick] [--only-drivetrain] [--write]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import (
    agreement,
    async_save,
    checkpoint,
    ddp_overhead,
    epoch_gap,
    exactness,
    grid,
    import_time,
    long_run,
    marginal,
    overhead,
    safety,
    start_up,
    wire,
)
from benchmarks.peers import Peer
from benchmarks.rounds import say
from benchmarks.wire_link import why_impossible

RESULTS = Path(__file__).with_name("results.md")
RATE = "1gbit"


@dataclass(frozen=True)
class Benchmark:
    """A benchmark and the arguments that it is run with here."""

    name: str
    main: Callable[[Sequence[str]], str]
    quick: str
    full: str
    peers: Sequence[Peer] = ()

    def arguments(self, *, is_quick: bool, has_others: bool) -> list[str]:
        """The command line of a run."""
        given = (self.quick if is_quick else self.full).split()
        if self.peers and not has_others:
            given += ["--peers", ",".join(peer.name for peer in self.peers if peer.package in (None, "drivetrain"))]
        return given


BENCHMARKS = (
    Benchmark("agreement", agreement.main, "--rounds 3 --steps 50", "--rounds 15 --steps 200"),
    Benchmark("async_save", async_save.main, "--rounds 2", "--rounds 5 --full"),
    Benchmark("checkpoint", checkpoint.main, "--size-mb 64 --rounds 2", "--size-mb 512 --rounds 5"),
    Benchmark(
        "ddp_overhead", ddp_overhead.main, "--rounds 1 --steps 300", "--rounds 7 --steps 2000", ddp_overhead.PEERS
    ),
    Benchmark("epoch_gap", epoch_gap.main, "--rounds 1 --epochs 5", "--rounds 7 --epochs 30"),
    Benchmark("exactness", exactness.main, "--quick", "", exactness.PEERS),
    Benchmark("grid", grid.main, "--ranks 1,2", ""),
    Benchmark("import_time", import_time.main, "--rounds 3", "--rounds 10"),
    Benchmark("long_run", long_run.main, "--steps 20000", "--steps 1000000"),
    Benchmark("marginal", marginal.main, "--rounds 1 --steps 300", "--rounds 7 --steps 2000"),
    Benchmark("overhead", overhead.main, "--rounds 2 --steps 1000", "--rounds 9 --steps 3000", overhead.PEERS),
    Benchmark("safety", safety.main, "--rounds 2 --steps 50", "--rounds 5 --steps 200"),
    Benchmark("start_up", start_up.main, "--rounds 1", "--rounds 7"),
    Benchmark(
        "wire", wire.main, f"--rate {RATE} --rounds 1 --steps 3", f"--rate {RATE} --rounds 5 --steps 6", wire.PEERS
    ),
)


def main() -> None:
    """Run all and print their tables; write them only if asked."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("--quick", action="store_true", help="some minutes: shows that all of them run; rough figures")
    parser.add_argument("--only-drivetrain", action="store_true", help="leave other libraries out though installed")
    parser.add_argument("--write", action="store_true", help=f"write the tables to {RESULTS.name}")
    parser.add_argument("names", nargs="*", help=f"of {', '.join(one.name for one in BENCHMARKS)}; by default all")
    asked = parser.parse_args()
    unknown = set(asked.names) - {one.name for one in BENCHMARKS}
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))} unknown")
    sections = ["# Results\n"]
    for benchmark in BENCHMARKS:
        if asked.names and benchmark.name not in asked.names:
            continue
        arguments = benchmark.arguments(is_quick=asked.quick, has_others=not asked.only_drivetrain)
        problem = why_impossible(RATE) if benchmark.name == "wire" else None
        if problem is not None:
            say(f"{benchmark.name} is left out: {problem}")
            continue
        say(f"== {benchmark.name} {' '.join(arguments)}")
        sections.append(benchmark.main(arguments))
        print(flush=True)
    if asked.write:
        RESULTS.write_text("\n".join(sections), encoding="utf-8")
        say(f"written to {RESULTS}")


if __name__ == "__main__":
    main()
