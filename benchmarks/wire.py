"""What a window of micro-batches sends over the link between two ranks, and how long its optimizer step takes.

python -m benchmarks.wire [--rate 1gbit] [--rounds 5] [--steps 6] [--window 8] [--width 1024]
                          [--peers ...] [--out FILE.md]

Needs root and iproute2: the ranks run in a network namespace of their own, whose loopback has the rate of a real link.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence

from benchmarks.peers import Peer, choose_peers
from benchmarks.rounds import Reading, measure_rounds, say
from benchmarks.table import give_out, markdown, peer_notes, ratio_cells, section, values_of
from benchmarks.two_ranks import launch_command
from benchmarks.wire_link import OPEN, on_link, why_impossible

KEY, BYTES_KEY = "ms_per_step", "megabytes_per_step"
PORT = 29501  # of the namespace, in which nobody else listens

PEERS = (
    Peer("no_sync", "hand-written DDP, no_sync"),
    Peer("every_micro_batch", "hand-written DDP, syncs every micro-batch"),
    Peer("drivetrain_loop", "drivetrain Fabric, raw loop", "drivetrain"),
    Peer("drivetrain_windows", "drivetrain Fabric, windows", "drivetrain"),
    Peer("drivetrain_trainer", "drivetrain Trainer", "drivetrain"),
    Peer("drivetrain_bf16", "windows, gradients in bf16 (not exact)", "drivetrain"),
    Peer("drivetrain_powersgd", "windows, PowerSGD of rank 1 (not exact)", "drivetrain"),
    Peer("drivetrain_local_sgd", "windows, LocalSGD every 8 steps (not exact)", "drivetrain"),
    Peer("drivetrain_diloco", "windows, DiLoCo every 50 steps (not exact)", "drivetrain"),
    Peer("lightning_fabric", "Lightning Fabric, raw loop", "lightning"),
    Peer("lightning_trainer", "Lightning Trainer", "lightning"),
    Peer("accelerate", "Accelerate", "accelerate"),
)

HEADER = (
    "loop", "MB on the link/step", "bytes to no_sync", "median, ms/step", "least, ms/step", "of minima to no_sync",
    "ratio by round: min / median / max",
)  # fmt: skip


def make_table(peers: Sequence[Peer], readings: dict[str, list[Reading | None]]) -> str:
    """One row for each peer; the first is what the others are compared with."""
    base = readings[peers[0].name]
    rows = []
    for peer in peers:
        own = readings[peer.name]
        times, sizes = values_of(own, KEY), values_of(own, BYTES_KEY)
        if not times:
            rows.append([peer.label, "failed", *[""] * (len(HEADER) - 2)])
            continue
        base_sizes = values_of(base, BYTES_KEY)
        rows.append(
            [
                peer.label,
                f"{statistics.median(sizes):.3f}",
                f"{statistics.median(sizes) / statistics.median(base_sizes):.3f}" if base_sizes else "",
                f"{statistics.median(times):.1f}",
                f"{min(times):.1f}",
                *ratio_cells(own, base, KEY),
            ]
        )
    return markdown(HEADER, rows)


def main(arguments: Sequence[str] | None = None) -> str:
    """Measure, print the section, write it if asked; return it."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wire")
    parser.add_argument("--rate", default="1gbit", help=f"of the link, as tc reads it; {OPEN!r} leaves it open")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each peer")
    parser.add_argument("--steps", type=int, default=6, help="optimizer steps of a measurement that count")
    parser.add_argument("--window", type=int, default=8, help="micro-batches of an optimizer step, on each rank")
    parser.add_argument("--width", type=int, default=1024, help="of the model: about 3 x width x width parameters")
    parser.add_argument("--peers", help=f"of {', '.join(peer.name for peer in PEERS)}")
    parser.add_argument("--out", help="also write the table here")
    asked = parser.parse_args(given)
    problem = why_impossible(asked.rate)
    if problem is not None:
        raise SystemExit(problem)
    peers, missing = choose_peers(PEERS, asked.peers)
    for peer in missing:
        say(f"{peer.label}: {peer.package} is not installed, left out")
    sizes = ["--steps", str(asked.steps), "--window", str(asked.window), "--width", str(asked.width)]
    readings = measure_rounds(
        [peer.name for peer in peers],
        lambda name: on_link(asked.rate, launch_command("benchmarks.wire_loops", [name, *sizes], port=PORT)),
        num_rounds=asked.rounds,
        show=lambda reading: f"{reading[BYTES_KEY]:8.2f} MB/step  {reading[KEY]:8.1f} ms/step",
    )
    num_parameters = 3 * (asked.width + 1) * asked.width + (asked.width + 1) * 10
    notes = [
        f"2 gloo ranks, {asked.window} micro-batches of 4 samples a step, {num_parameters:,} float32 parameters "
        f"({num_parameters * 4 / 1e6:.2f} MB): one all-reduce sends that much in each direction. Link: {asked.rate}.",
        f"{asked.rounds} rounds of {asked.steps} steps; bytes are the kernel's counter of the namespace's loopback.",
        "LocalSGD and DiLoCo are counted over whole rounds of 8 and 50 steps, each with its one sync.",
        *peer_notes(peers, missing),
    ]
    title = f"Bytes and time of a window of {asked.window} micro-batches on 2 ranks"
    table = make_table(peers, readings)
    text = section(title, [table], notes, module="benchmarks.wire", arguments=given)
    give_out(text, asked.out)
    return text


if __name__ == "__main__":
    main()
