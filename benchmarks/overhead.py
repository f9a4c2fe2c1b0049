"""What a loop costs around a tiny model, per step.

python -m benchmarks.overhead [--rounds 7] [--steps 3000] [--peers raw,drivetrain_bare] [--out FILE.md]
                              [--plot FILE.png]
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence

from benchmarks.peers import Peer, choose_peers
from benchmarks.plot import plot_ratios
from benchmarks.rounds import Reading, measure_rounds, say
from benchmarks.table import give_out, markdown, peer_notes, ratio_cells, section, values_of

KEY, CPU_KEY = "us_per_step", "cpu_us_per_step"

PEERS = (
    Peer("raw", "hand-written PyTorch"),
    Peer("drivetrain_loop", "drivetrain Fabric, raw loop", "drivetrain"),
    Peer("drivetrain_windows", "drivetrain Fabric, windows", "drivetrain"),
    Peer("drivetrain_bare", "drivetrain Trainer, bare", "drivetrain"),
    Peer("drivetrain_logging", "drivetrain Trainer, defaults and one log", "drivetrain"),
    Peer("lightning_fabric", "Lightning Fabric, raw loop", "lightning"),
    Peer("lightning_bare", "Lightning Trainer, bare", "lightning"),
    Peer("lightning_logging", "Lightning Trainer, defaults and one log", "lightning"),
    Peer("accelerate", "Accelerate", "accelerate"),
)

HEADER = (
    "loop", "median, µs/step", "least, µs/step", "over raw, µs", "of minima to raw",
    "ratio by round: min / median / max", "processor, µs/step",
)  # fmt: skip


def make_table(peers: Sequence[Peer], readings: dict[str, list[Reading | None]]) -> str:
    """One row for each peer; the first is what the others are compared with."""
    base = readings[peers[0].name]
    rows = []
    for peer in peers:
        own = readings[peer.name]
        values = values_of(own, KEY)
        if not values:
            rows.append([peer.label, "failed", *[""] * (len(HEADER) - 2)])
            continue
        over = min(values) - min(values_of(base, KEY)) if values_of(base, KEY) else float("nan")
        rows.append(
            [
                peer.label,
                f"{statistics.median(values):.1f}",
                f"{min(values):.1f}",
                f"{over:+.1f}",
                *ratio_cells(own, base, KEY),
                f"{min(values_of(own, CPU_KEY)):.1f}",
            ]
        )
    return markdown(HEADER, rows)


def same_training(peers: Sequence[Peer], readings: dict[str, list[Reading | None]]) -> str:
    """A sentence about whether all peers came to the same last loss: only then is it the same work."""
    expected = next((reading["last_loss"] for reading in readings[peers[0].name] if reading is not None), None)
    strange = [
        peer.label
        for peer in peers
        if any(abs(value - (expected or 0)) > 1e-5 for value in values_of(readings[peer.name], "last_loss"))
    ]
    if strange:
        return f"**Not the same training**: the last loss of {', '.join(strange)} differs from {expected}."
    return f"All came to the same last loss, {expected:.6f}." if expected is not None else "Nothing was measured."


def command_of(name: str, num_steps: int) -> list[str]:
    """The command line of one measurement."""
    return [sys.executable, "-m", "benchmarks.overhead_loops", name, "--steps", str(num_steps)]


def compare(
    arguments: Sequence[str] | None,
    *,
    name: str,
    title: str,
    peers: Sequence[Peer],
    command_of: Callable[[str, int], Sequence[str]],
    what: str,
    num_steps: int,
) -> str:
    """Read the command line, measure in turn, print the section, write and plot it if asked; return it.

    Args:
        arguments: Of the command line; by default those of this process.
        name: Of the module that is run.
        title: Of the section.
        peers: All there are; the first is what the others are compared with.
        command_of: The command line of one measurement: of which peer, and how many steps.
        what: What is trained.
        num_steps: Of a measurement, by default.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}")
    parser.add_argument("--rounds", type=int, default=7, help="measurements of each peer")
    parser.add_argument("--steps", type=int, default=num_steps, help="optimizer steps of a measurement")
    parser.add_argument("--peers", help=f"of {', '.join(peer.name for peer in peers)}")
    parser.add_argument("--out", help="also write the table here")
    parser.add_argument("--plot", help="draw the ratios here; needs matplotlib")
    asked = parser.parse_args(given)
    chosen, missing = choose_peers(peers, asked.peers)
    for peer in missing:
        say(f"{peer.label}: {peer.package} is not installed, left out")
    readings = measure_rounds(
        [peer.name for peer in chosen],
        lambda peer: command_of(peer, asked.steps),
        num_rounds=asked.rounds,
        show=lambda reading: f"{reading[KEY]:8.1f} µs/step",
    )
    notes = [
        f"{what}; each round is one fresh run for each loop, {asked.rounds} rounds of {asked.steps} steps.",
        same_training(chosen, readings),
        *peer_notes(chosen, missing),
    ]
    text = section(title, [make_table(chosen, readings)], notes, module=f"benchmarks.{name}", arguments=given)
    give_out(text, asked.out)
    if asked.plot:
        plot_ratios(
            {peer.label: (readings[peer.name], readings[chosen[0].name]) for peer in chosen}, key=KEY, path=asked.plot
        )
    return text


def main(arguments: Sequence[str] | None = None) -> str:
    """Measure, print the section, write it if asked; return it."""
    return compare(
        arguments,
        name="overhead",
        title="Cost of a step",
        peers=PEERS,
        command_of=command_of,
        what="64-128-10 perceptron, batch 32, SGD, a DataLoader without workers, one thread",
        num_steps=3000,
    )


if __name__ == "__main__":
    main()
