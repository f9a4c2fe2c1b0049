"""Whether each optimizer step is the right one, whether ranks change the result, and what uneven ranks do.

python -m benchmarks.exactness [--quick] [--peers ...] [--out FILE.md] [--write docs/exactness.md]
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.exactness_page import PEERS, page
from benchmarks.exactness_plot import plot_differences
from benchmarks.exactness_tasks import RANKS_EPOCHS, RANKS_SAMPLES_OF, UNEVEN_KINDS, WINDOW_SAMPLES_OF
from benchmarks.exactness_uneven import Outcome, outcomes
from benchmarks.peers import Peer, choose_peers
from benchmarks.rounds import Reading, run_child, say
from benchmarks.table import give_out
from benchmarks.two_ranks import free_port, launch_command

TIMEOUT_S = 300
QUICK_EPOCHS = 2
_LOOPS = "benchmarks.exactness_loops"
_FAILED = Outcome("failed", None)

Results = dict[tuple[str, str, str], Outcome]  # of part, scenario and peer


def train(peer: Peer, num_epochs: int, *, has_ranks: bool) -> Reading | None:
    """What came of one peer's training of all tasks but the uneven ones; `None` if it failed."""
    given = [peer.name, "--epochs", str(num_epochs)]
    where = "2 ranks" if has_ranks else "one process"
    command = launch_command(_LOOPS, given, port=free_port()) if has_ranks else [sys.executable, "-m", _LOOPS, *given]
    try:
        reading = run_child(command, timeout_s=TIMEOUT_S)
    except RuntimeError as error:
        say(f"{peer.label}, {where}: FAILED: {error}")
        return None
    say(f"{peer.label}, {where}: done")
    return reading


def measure(peers: Sequence[Peer], num_epochs: int) -> Results:
    """The outcome of each scenario with each peer."""
    results: Results = {}
    for peer in peers:
        if not peer.name.endswith("_join"):
            alone = train(peer, num_epochs, has_ranks=False)
            pair = train(peer, num_epochs, has_ranks=True)
            for scenario in WINDOW_SAMPLES_OF:
                results["windows", scenario, peer.name] = _judge_window(scenario, alone)
            for scenario in RANKS_SAMPLES_OF:
                results["ranks", scenario, peer.name] = _judge_ranks(scenario, alone, pair)
        for scenario, found in _uneven(peer).items():
            say(f"{peer.label}, uneven ranks, {scenario}: {found.text} {found.note}")
            results["uneven", scenario, peer.name] = found
    return results


def _uneven(peer: Peer) -> dict[str, Outcome]:
    try:
        return outcomes(peer.name)
    except RuntimeError as error:
        say(f"{peer.label}, uneven ranks: FAILED: {error}")
        return dict.fromkeys(UNEVEN_KINDS, _FAILED)


def _judge_window(scenario: str, alone: Reading | None) -> Outcome:
    if alone is None:
        return _FAILED
    found = alone["windows"][scenario]
    return Outcome(f"{found['worst']:.1e}", found["worst"], _steps(found["num_steps"], found["num_expected"]))


def _judge_ranks(scenario: str, alone: Reading | None, pair: Reading | None) -> Outcome:
    if alone is None or pair is None:
        return _FAILED
    one, two = alone["ranks"][scenario], pair["ranks"][scenario]
    difference = max(abs(a - b) for a, b in zip(one["parameters"], two["parameters"], strict=True))
    return Outcome(f"{difference:.1e}", difference, _steps(two["num_steps"], one["num_steps"]))


def _steps(made: float, expected: float) -> str:
    return "" if made == expected else f"{made:.0f} steps instead of {expected:.0f}"


def main(arguments: Sequence[str] | None = None) -> str:
    """Train, print the section, write it if asked; return it."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(prog="python -m benchmarks.exactness")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_EPOCHS} epochs instead of {RANKS_EPOCHS}")
    parser.add_argument("--peers", help=f"of {', '.join(peer.name for peer in PEERS)}")
    parser.add_argument("--out", help="also write the tables here")
    parser.add_argument("--write", help="write them as a page of the documentation, with a picture beside it")
    asked = parser.parse_args(given)
    peers, missing = choose_peers(PEERS, asked.peers)
    for peer in missing:
        say(f"{peer.label}: {peer.package} is not installed, left out")
    num_epochs = QUICK_EPOCHS if asked.quick else RANKS_EPOCHS
    results = measure(peers, num_epochs)
    picture = None
    if asked.write is not None and plot_differences(peers, results, path=Path(asked.write).with_suffix(".svg")):
        picture = Path(asked.write).with_suffix(".svg").name
    text = page(peers, missing, results, num_epochs=num_epochs, arguments=given, picture=picture)
    give_out(text, asked.out)
    if asked.write is not None:
        Path(asked.write).write_text(re.sub("^#(?=#)", "", text, flags=re.MULTILINE), encoding="utf-8")
        say(f"written to {asked.write}")
    return text


if __name__ == "__main__":
    main()
