"""The page about exactness: for each part a table with a row for each scenario, what the rows mean, and notes."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.exactness_tasks import UNEVEN_BATCHES
from benchmarks.exactness_uneven import Outcome
from benchmarks.peers import Peer, version_of
from benchmarks.table import markdown

PEERS = (
    Peer("hand_written", "hand-written DDP"),
    Peer("hand_written_join", "hand-written DDP, `join`"),
    Peer("drivetrain_trainer", "drivetrain `Trainer`", "drivetrain"),
    Peer("drivetrain_windows", "drivetrain `Fabric`", "drivetrain"),
    Peer("lightning_trainer", "Lightning `Trainer`", "lightning"),
    Peer("accelerate", "Accelerate", "accelerate"),
)


@dataclass(frozen=True)
class Part:
    """One table of the page.

    Attributes:
        name: In results.
        title: Its heading.
        about: What is trained and compared.
        scenarios: Name to the label of the row and two sentences about it.
        has_join: DDP's `join` is another loop here; without uneven ranks it changes nothing.
    """

    name: str
    title: str
    about: str
    scenarios: Mapping[str, tuple[str, str]]
    has_join: bool = False

    def peers(self, peers: Sequence[Peer]) -> list[Peer]:
        """The columns."""
        return [peer for peer in peers if self.has_join or not peer.name.endswith("_join")]


PARTS = (
    Part(
        "windows",
        "One process",
        "SGD on a linear regression, windows of 4 micro-batches of 4 samples. The figure is the worst relative error "
        "of an optimizer step: the step that was made against the gradient of the mean loss over all samples of its "
        "window, computed at once.",
        {
            "even": (
                "even",
                "All windows are full and all micro-batches have 4 samples. Every way to write the loop is right here.",
            ),
            "tail": (
                "tail",
                "The last window of the epoch has 2 micro-batches. Who divides by 4 all the same makes half a step.",
            ),
            "ragged": (
                "ragged",
                "The last window is short and its last micro-batch has 2 samples. They count twice as much as others "
                "where the means of micro-batches are averaged.",
            ),
            "tokens": (
                "tokens",
                "Samples have weights from 1 to 19, as sentences have lengths, and the right step is the weighted "
                "mean over the window. drivetrain's step returns the weight beside the loss; without it, means of "
                "very different weight are averaged as equals.",
            ),
        },
    ),
    Part(
        "ranks",
        "2 ranks against 1 process",
        "AdamW with clipping on a small network, {num_steps} steps over windows of 16 samples: 4 micro-batches in one"
        " process, 2 on each of 2 ranks. The figure is the greatest difference of a parameter at the end, between the"
        " two runs of the same script.",
        {
            "even": ("even", "All windows are full. Ranks only change the order in which numbers are added."),
            "ragged": (
                "ragged",
                "The last window has 6 samples. How they fall into micro-batches depends on the number of ranks, and "
                "so does the step where means of micro-batches are averaged.",
            ),
            "tokens": (
                "tokens",
                "Samples have weights from 1 to 19. A rank with few of them weighs as much as the other where DDP "
                "averages the means of ranks.",
            ),
            "shuffled": (
                "shuffled",
                "The library shuffles the data; both runs have one seed. The order of drivetrain is a function of "
                "seed and epoch, so that ranks share it; the hand-written loop has the same from a "
                "`DistributedSampler`.",
            ),
        },
    ),
    Part(
        "uneven",
        "Ranks with different numbers of samples",
        "SGD on the linear regression, one micro-batch of 4 samples on each of 2 ranks for a step, one epoch. The "
        "figure is the greatest difference of a parameter at the end to one process that sees in each step all "
        "samples that the ranks have then.",
        {
            "loaders": (
                "own loaders",
                f"Each rank has a loader of its own, with {UNEVEN_BATCHES[0]} batches on rank 0 and "
                f"{UNEVEN_BATCHES[1]} on rank 1. Rank 0 asks for a sum of gradients that rank 1, at the end of its "
                "epoch, does not take part in.",
            ),
            "streams": (
                "own streams",
                "The same with iterable data sets, which have no length. Nobody can know beforehand that a rank will "
                "have no more.",
            ),
            "odd": (
                "odd number",
                "The library shards 37 samples. They cannot be dealt out equally: one counts twice where a sampler "
                "pads, more where batches are filled up.",
            ),
        },
        has_join=True,
    ),
)

INTRODUCTION = (
    "Whether each optimizer step is the one that a single process with one big batch would have made: measured on "
    "small regressions in float64, whose right answer is known, with drivetrain, with a hand-written loop and with "
    "other libraries. Every figure here is printed by the command at the end."
)

NOTES = (
    "About 1e-16 is rounding in float64. A figure near 0.1 is another training.",
    "Hand-written is the usual recipe: each loss is divided by the micro-batches of a full window, and `no_sync` is on "
    "in all but the last. With care each row can be had by hand, in every library; the table shows what comes without.",
    "Every library is written as its guide writes it, with the samples in the same order. Lightning shuffles a "
    "training loader on several ranks that is not shuffled, so it is given a `DistributedSampler` in all rows but "
    "`shuffled`.",
    "drivetrain and hand-written `join`, which is `DistributedDataParallel.join`, run with their defaults: torch's "
    "divides by all ranks, also those that have no more. Accelerate's `join_uneven_inputs` does nothing on CPUs, so it "
    "is not measured. Loaders that are sharded already are not given to `Accelerator.prepare`.",
    "Ranks talk over gloo. A loop hangs if nothing moves for so long while the other rank has come through its "
    "epoch and waits for it, as a script would that goes on to its next epoch, or saves.",
)


def page(
    peers: Sequence[Peer], missing: Sequence[Peer], results: Mapping[tuple[str, str, str], Outcome], *,
    num_epochs: int, arguments: Sequence[str], picture: str | None,
) -> str:  # fmt: skip
    """All tables with what their rows mean, how they were made, and notes. Headings begin on the second level."""
    lines = [
        "## Exactness",
        _wrapped(INTRODUCTION),
    ]
    if picture is not None:
        lines.append(f"![Differences of all scenarios and loops on a logarithmic scale]({picture})")
    for part in PARTS:
        columns = part.peers(peers)
        remarks: list[str] = []
        rows = []
        for scenario, (label, _) in part.scenarios.items():
            found = [results[part.name, scenario, peer.name] for peer in columns]
            rows.append([label, *[_cell(one, remarks) for one in found]])
        lines += [
            f"### {part.title}",
            _wrapped(part.about.format(num_steps=5 * num_epochs)),
            markdown(("", *[peer.label for peer in columns]), rows),
        ]
        if remarks:
            lines.append("\n".join(f"({index}) {remark}.  " for index, remark in enumerate(remarks, start=1)))
        lines.append("\n".join(_wrapped(f"- **{label}**: {text}", "  ") for label, text in part.scenarios.values()))
    lines += ["### What is fair to whom", "\n".join(_wrapped(f"- {note}", "  ") for note in NOTES), "### Make it again"]
    lines += [_made_by(peers, missing, arguments)]
    return "\n\n".join(lines) + "\n"


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(text, 120, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)


def _cell(found: Outcome, remarks: list[str]) -> str:
    if not found.note:
        return found.text
    if found.note not in remarks:
        remarks.append(found.note)
    return f"{found.text} ({remarks.index(found.note) + 1})"


def _made_by(peers: Sequence[Peer], missing: Sequence[Peer], arguments: Sequence[str]) -> str:
    names = ["torch", *sorted({peer.package for peer in peers if peer.package not in (None, "drivetrain")} - {None})]
    command = shlex.join(["python", "-m", "benchmarks.exactness", *arguments])
    said = [
        f"```sh\npip install lightning accelerate   # what is not installed is left out\n{command}\n```",
        _wrapped(
            "No timing is in it: the same digits come each time on one machine; on another one the rounding may "
            f"differ. Made with {', '.join(f'{name} {version_of(name)}' for name in names if name)}, on the CPU."
        ),
    ]
    if missing:
        said.append("Not installed, so not measured: " + ", ".join(peer.label for peer in missing) + ".")
    return "\n\n".join(said)
