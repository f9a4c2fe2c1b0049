"""Tables in Markdown, with the command that made them and the machine that they are from."""

from __future__ import annotations

import os
import platform
import shlex
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers import Peer, version_of
from benchmarks.rounds import Reading, say


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose first column is text and whose others are numbers."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        first = cells[0].ljust(widths[0])
        return "| " + " | ".join([first, *(c.rjust(w) for c, w in zip(cells[1:], widths[1:], strict=True))]) + " |"

    rule = "|" + "|".join("-" * (w + 2) if i == 0 else "-" * (w + 1) + ":" for i, w in enumerate(widths)) + "|"
    return "\n".join([line(header), rule, *map(line, rows)])


def values_of(readings: Sequence[Reading | None], key: str) -> list[float]:
    """One figure of the rounds that did not fail."""
    return [float(reading[key]) for reading in readings if reading is not None]


def ratio_cells(own: Sequence[Reading | None], base: Sequence[Reading | None], key: str) -> list[str]:
    """The ratio of the least values, and the least, median and greatest of the ratios of each round."""
    both = [(a, b) for a, b in zip(own, base, strict=True) if a is not None and b is not None]
    if not both:
        return ["", ""]
    ratios = [a[key] / b[key] for a, b in both]
    least = min(values_of(own, key)) / min(values_of(base, key))
    spread = " / ".join(f"{x:.2f}" for x in (min(ratios), statistics.median(ratios), max(ratios)))
    return [f"{least:.3f}", spread]


def section(title: str, tables: Sequence[str], notes: Sequence[str], *, module: str, arguments: Sequence[str]) -> str:
    """A heading, tables, the notes to it, and where it is from."""
    command = shlex.join(["python", "-m", module, *arguments])
    said = [f"- {note}" for note in [*notes, f"Made by `{command}` on {machine()}."]]
    return "\n\n".join([f"## {title}", *tables, "\n".join(said)]) + "\n"


def machine() -> str:
    """Processor, cores, versions, and how busy the machine is with other things."""
    load = f"load {os.getloadavg()[0]:.1f} at the end" if hasattr(os, "getloadavg") else "load unknown"
    num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return (
        f"{platform.system()} {platform.machine()}, {num_cores} cores, Python {platform.python_version()}, "
        f"torch {version_of('torch')}, {load}"
    )


def peer_notes(measured: Sequence[Peer], missing: Sequence[Peer]) -> list[str]:
    """Versions of the other libraries, and which of them are not here."""
    packages = sorted({peer.package for peer in measured if peer.package not in (None, "drivetrain")} - {None})
    notes = []
    if packages:
        notes.append("Versions: " + ", ".join(f"{one} {version_of(one)}" for one in packages if one) + ".")
    if missing:
        notes.append("Not installed, so not measured: " + ", ".join(peer.label for peer in missing) + ".")
    return notes


def give_out(text: str, path: str | None) -> None:
    """Print a section; also write it to a file if one is named."""
    sys.stdout.write(text)
    sys.stdout.flush()
    if path is not None:
        Path(path).write_text(text, encoding="utf-8")
        say(f"written to {path}")
