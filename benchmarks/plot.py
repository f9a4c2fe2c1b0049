"""Ratios as a picture: one dot for each round, a bar for the median."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from benchmarks.rounds import Reading, say


def plot_ratios(
    pairs: Mapping[str, tuple[Sequence[Reading | None], Sequence[Reading | None]]], *, key: str, path: str
) -> None:
    """Draw the ratios of each round to the base.

    Args:
        pairs: Label to the peer's readings and the base's.
        key: Which figure.
        path: Of the picture.
    """
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        say("no plot: matplotlib is not installed")
        return
    ratios = {
        label: [a[key] / b[key] for a, b in zip(own, base, strict=True) if a is not None and b is not None]
        for label, (own, base) in pairs.items()
    }
    ratios = {label: values for label, values in ratios.items() if values}
    figure, axes = plt.subplots(figsize=(8, 0.5 * len(ratios) + 1.2), layout="constrained")
    labels = list(ratios)[::-1]
    axes.barh(labels, [statistics.median(ratios[label]) for label in labels], color="0.85")
    for height, label in enumerate(labels):
        axes.plot(ratios[label], [height] * len(ratios[label]), "o", color="C0", markersize=4, alpha=0.7)
    axes.axvline(1.0, color="0.4", linewidth=1)
    axes.set_xlabel("times the hand-written loop: one dot a round, the bar is the median")
    figure.savefig(path, dpi=150)
    plt.close(figure)
    say(f"drawn to {path}")
