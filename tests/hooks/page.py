"""The page about hooks: made of what the code says of each, and of what was heard in recorded runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from tests.hooks import record
from tests.hooks.named import Hook, all_hooks
from tests.hooks.order import listing, rows_of, tree_of

Recordings = Sequence[record.Recording]  # of each rank
TEMPLATE = Path(__file__).with_name("template.md")

# In the order of the page; a hook belongs to the first group of which the pattern fits its name.
GROUPS = {
    "parts": r".*batch_transfer|transfer_batch_to_device|backward|optimizer_step|optimizer_zero_grad"
    r"|configure_gradient_clipping|lr_scheduler_step",
    "checkpoints": r"saving|.*_checkpoint|on_before_load|.*state_dict",
    "evaluation": r"on_(validation|test|predict)_.*|(validation|test|predict)_step",
    "training": r"on_sanity_.*|on_train_.*|on_step_end|on_before_.*|on_after_.*|training_step",
    "run": r".*",
}


def page(recordings: Recordings) -> str:
    """All of it.

    Args:
        recordings: What each rank has heard.
    """
    text = TEMPLATE.read_text(encoding="utf-8")
    places = {
        "fit": _listed(recordings, "fit"),
        "goes_on": _listed(recordings, record.GOING_ON, until="training_step"),
        "fails": _listed(recordings, record.FAILING, rank=record.FAILING_RANK, since="on_train_end"),
        "test": _listed(recordings, "test"),
        **{name: table(name, recordings) for name in GROUPS},
        "sizes": f"{record.NUM_RANKS} ranks, {record.NUM_EPOCHS} epochs of {record.NUM_MICRO} micro-batches in windows "
        f"of {record.WINDOW}, {record.NUM_VAL} batches of validation",
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: places[found[1]], text)


def group_of(name: str) -> str:
    """In which table a hook is."""
    return next(group for group, pattern in GROUPS.items() if re.fullmatch(pattern, name))


def table(group: str, recordings: Recordings) -> str:
    """A row for each hook, in the order in which they were first heard; owners of which all is the same share one."""
    order = first_heard(recordings)
    hooks = [hook for hook in all_hooks() if group_of(hook.name) == group]
    rows: dict[tuple[str, ...], list[str]] = {}
    for hook in sorted(hooks, key=lambda hook: order[hook.owner, hook.name]):
        arguments = f"`{hook.arguments}`" if hook.arguments else ""
        key = (hook.name, arguments, ranks_of(hook, recordings), times_of(hook, recordings), hook.when)
        rows.setdefault(key, []).append(hook.owner)
    # All rows of one name stand together.
    names = list(dict.fromkeys(key[0] for key in rows))
    lines = ["| hook | of | further arguments | ranks | times | when |", "|---|---|---|---|---|---|"]
    for key, owners in sorted(rows.items(), key=lambda row: names.index(row[0][0])):
        name, *others = key
        lines.append(f"| `{name}` | {' | '.join([', '.join(owners), *others])} |")
    return "\n".join(lines)


def first_heard(recordings: Recordings) -> dict[tuple[str, str], int]:
    """When each hook was heard for the first time, counted over all runs, by owner and name."""
    order: dict[tuple[str, str], int] = {}
    for run in recordings[0]:
        for recording in recordings:
            for note in recording[run]:
                order.setdefault(note, len(order))
    return order


def run_of(hook: Hook, recordings: Recordings) -> str:
    """The first run in which a hook was heard."""
    note = (hook.owner, hook.name)
    return next(run for run in recordings[0] if any(note in recording[run] for recording in recordings))


def ranks_of(hook: Hook, recordings: Recordings) -> str:
    """Where it was heard in that run."""
    note, run = (hook.owner, hook.name), run_of(hook, recordings)
    ranks = [rank for rank, recording in enumerate(recordings) if note in recording[run]]
    if len(ranks) == len(recordings):
        return "all"
    return "the one that fails" if run == record.FAILING else ", ".join(map(str, ranks))


def times_of(hook: Hook, recordings: Recordings) -> str:
    """How often it was heard in that run, by a rank that hears of it."""
    run = run_of(hook, recordings)
    times = max(recording[run].count((hook.owner, hook.name)) for recording in recordings)
    return str(times) if run == "fit" else f"{times} in {run}"


def _listed(recordings: Recordings, run: str, *, rank: int = 0, since: str = "", until: str = "") -> str:
    others = {note for number, recording in enumerate(recordings) if number != rank for note in recording[run]}
    beside = {note[1]: f"; rank {rank} alone" for note in recordings[rank][run] if note not in others}
    lines = listing(tree_of(rows_of(recordings[rank][run])), since=since, until=until, notes=beside)
    return "\n".join(["```text", *(line.replace(record.LAST, "last") for line in lines), "```"])
