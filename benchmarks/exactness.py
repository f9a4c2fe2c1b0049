"""Whether each optimizer step is the right one, and whether ranks change the result.

python -m benchmarks.exactness [--peers ...] [--one-process] [--out FILE.md]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from benchmarks.exactness_tasks import RANKS_SAMPLES_OF, WINDOW_SAMPLES_OF
from benchmarks.peers import Peer, choose_peers
from benchmarks.rounds import Reading, run_child, say
from benchmarks.table import give_out, markdown, peer_notes, section
from benchmarks.two_ranks import free_port, launch_command

PEERS = (
    Peer("hand_written", "hand-written, loss / micro-batches"),
    Peer("drivetrain_trainer", "drivetrain Trainer", "drivetrain"),
    Peer("drivetrain_windows", "drivetrain Fabric, windows", "drivetrain"),
    Peer("lightning_trainer", "Lightning Trainer", "lightning"),
    Peer("accelerate", "Accelerate", "accelerate"),
)
_LOOPS = "benchmarks.exactness_loops"
TIMEOUT_S = 300


def train(peer: Peer, kind: str, *, has_ranks: bool = False) -> Reading | None:
    """What came of one peer's training; `None` if it failed."""
    plain = [sys.executable, "-m", _LOOPS, peer.name, kind]
    try:
        command = launch_command(_LOOPS, [peer.name, kind], port=free_port()) if has_ranks else plain
        reading = run_child(command, timeout_s=TIMEOUT_S)
    except RuntimeError as error:
        say(f"{peer.label}, {kind}: FAILED: {error}")
        return None
    say(f"{peer.label}, {kind}, {'2 ranks' if has_ranks else 'one process'}: done")
    return reading


def windows_table(peers: Sequence[Peer]) -> str:
    """The worst relative error of a step, in one process."""
    rows = []
    for peer in peers:
        reading = train(peer, "windows")
        cells = [step_cell(reading[scenario]) if reading is not None else "failed" for scenario in WINDOW_SAMPLES_OF]
        rows.append([peer.label, *cells])
    return markdown(("worst relative error of a step", *WINDOW_SAMPLES_OF), rows)


def step_cell(outcome: Reading) -> str:
    """An error, and the steps made if they are not as many as the epoch has windows."""
    made, expected = int(outcome["num_steps"]), int(outcome["num_expected"])
    return f"{outcome['worst']:.1e}" + (f" ({made} of {expected} steps)" if made != expected else "")


def ranks_table(peers: Sequence[Peer]) -> str:
    """The greatest difference of a parameter between 2 ranks and one process."""
    rows = []
    for peer in peers:
        one, two = train(peer, "ranks"), train(peer, "ranks", has_ranks=True)
        if one is None or two is None:
            rows.append([peer.label, *["failed"] * len(RANKS_SAMPLES_OF)])
            continue
        rows.append([peer.label, *[ranks_cell(one[scenario], two[scenario]) for scenario in RANKS_SAMPLES_OF]])
    return markdown(("greatest difference of a parameter, 2 ranks to one process", *RANKS_SAMPLES_OF), rows)


def ranks_cell(one: Reading, two: Reading) -> str:
    """The greatest difference, and the steps made if they are not as many."""
    difference = max(abs(a - b) for a, b in zip(one["parameters"], two["parameters"], strict=True))
    made, expected = two["num_steps"], one["num_steps"]
    return f"{difference:.1e}" + (f" ({made} to {expected} steps)" if made != expected else "")


def main(arguments: Sequence[str] | None = None) -> str:
    """Train, print the section, write it if asked; return it."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(prog="python -m benchmarks.exactness")
    parser.add_argument("--peers", help=f"of {', '.join(peer.name for peer in PEERS)}")
    parser.add_argument("--one-process", action="store_true", help="leave out the table with 2 ranks")
    parser.add_argument("--out", help="also write the tables here")
    asked = parser.parse_args(given)
    peers, missing = choose_peers(PEERS, asked.peers)
    for peer in missing:
        say(f"{peer.label}: {peer.package} is not installed, left out")
    tables = [windows_table(peers)]
    notes = [
        "First table: SGD steps of a float64 linear regression in one process, windows of 4 micro-batches of 4 "
        "samples, compared with the gradient over the whole window at once. `even`: all windows full; `tail`: the "
        "last window has 2 micro-batches; `ragged`: also its last micro-batch has 2 samples; `tokens`: samples weigh 1 "
        "to 19, and the right step is the weighted mean over the window.",
    ]
    if not asked.one_process:
        tables.append(ranks_table(peers))
        notes.append(
            "Second table: 50 AdamW steps with clipping, windows of 16 samples: 4 micro-batches in one process, 2 on "
            "each of 2 ranks. `ragged`: the last window has 6 samples; `shuffled`: another order in each epoch, drawn "
            "by the library (the hand-written loop draws it from a DistributedSampler in both cases). About 1e-15 is "
            "rounding; a great difference in `shuffled` alone says that the order of the data depends on the ranks."
        )
    notes += peer_notes(peers, missing)
    text = section("Exactness", tables, notes, module="benchmarks.exactness", arguments=given)
    give_out(text, asked.out)
    return text


if __name__ == "__main__":
    main()
