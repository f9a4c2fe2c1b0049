"""Exactness as a picture: a bar for each scenario and loop, on a logarithmic scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.exactness_page import PARTS
from benchmarks.exactness_uneven import Outcome
from benchmarks.peers import Peer
from benchmarks.rounds import say

FLOOR = 1e-17  # where a bar begins; a difference of 0 is drawn here
COLORS = {
    "hand_written": "#9aa0a6", "hand_written_join": "#c9ccd1", "drivetrain_trainer": "#1565c0",
    "drivetrain_windows": "#64a6e8", "lightning_trainer": "#8e44ad", "accelerate": "#e08e0b",
}  # fmt: skip


def plot_differences(peers: Sequence[Peer], results: Mapping[tuple[str, str, str], Outcome], *, path: Path) -> bool:
    """Draw all outcomes; False if that is not possible here."""
    try:
        import matplotlib as mpl
        import matplotlib.pyplot as plt
    except ImportError:
        say("no picture: matplotlib is not installed")
        return False
    widths = [len(part.scenarios) * len(part.peers(peers)) for part in PARTS]
    style = {"svg.hashsalt": "exactness", "svg.fonttype": "none", "font.size": 9}
    with mpl.rc_context(style):
        figure, panels = plt.subplots(
            1, len(PARTS), figsize=(11, 3.6), sharey=True, layout="constrained", width_ratios=widths
        )
        labelled: dict[str, object] = {}
        for part, axes in zip(PARTS, panels, strict=True):
            columns = part.peers(peers)
            for place, (scenario, _) in enumerate(part.scenarios.items()):
                for index, peer in enumerate(columns):
                    found = results[part.name, scenario, peer.name]
                    x = place + (index - (len(columns) - 1) / 2) * 0.85 / len(columns)
                    if found.difference is None:
                        axes.text(
                            x, FLOOR * 3, found.text, rotation=90, ha="center", va="bottom", color=COLORS[peer.name]
                        )
                        continue
                    height = max(found.difference, FLOOR) - FLOOR
                    width = 0.8 / len(columns)
                    bar = axes.bar(x, height, width, bottom=FLOOR, color=COLORS[peer.name])
                    labelled.setdefault(peer.label.replace("`", ""), bar)
            axes.set_title(part.title)
            axes.set_xticks(range(len(part.scenarios)), [label for label, _ in part.scenarios.values()])
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(axis="y", color="0.9")
            axes.set_axisbelow(True)
        panels[0].set_yscale("log")
        panels[0].set_ylim(FLOOR, 3)
        panels[0].set_ylabel("difference to the exact result")
        figure.legend(
            labelled.values(), labelled.keys(), loc="outside lower center", ncols=len(labelled), frameon=False
        )
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)
    say(f"drawn to {path}")
    return True
