"""The values of an epoch that is not over, as a checkpoint holds them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from drivetrain.loop.metric_objects import find_objects, object_state, paths_of, restore_object
from drivetrain.loop.metrics import Entry, MetricStore


def epoch_state(metrics: MetricStore, module: nn.Module) -> dict[str, Any]:
    """What was logged in this epoch of training on this rank, as plain data and tensors on the CPU.

    Args:
        metrics: Of this rank.
        module: Holds the metric objects that were logged.
    """
    entries = metrics.train_entries()
    objects = {name: one.object for name, one in entries.items() if one.object is not None and one.on_epoch}
    paths = paths_of(module) if objects else {}
    found = {paths[id(value)]: value for value in objects.values() if id(value) in paths}
    return {
        "micro_weights": [_on_cpu(weight) for weight in metrics.micro_weights],
        "carried": {name: [_on_cpu(total), _on_cpu(weight)] for name, (total, weight) in metrics.carried.items()},
        "entries": {name: _entry_state(one, metrics.num_windows) for name, one in entries.items()},
        "objects": {path: object_state(value) for path, value in found.items()},
        "object_paths": {name: paths[id(value)] for name, value in objects.items() if id(value) in paths},
    }


def restore_epoch(metrics: MetricStore, states: Sequence[dict[str, Any]], module: nn.Module) -> None:
    """Let the epoch that begins next go on with the values of one that was saved.

    On as many ranks as before each goes on with its own; otherwise rank 0 has what all had together, and metric
    objects begin anew: only they know how two of them are joined.

    Args:
        metrics: Of this rank.
        states: What `epoch_state` gave on each rank; of ranks that read the same data on the first of them.
        module: Holds the metric objects that were logged.
    """
    rank, num_alike = metrics.collectives.rank, metrics.collectives.num_alike
    num_ranks = metrics.collectives.world_size // num_alike
    if states and len(states) != num_ranks and states[0].get("objects"):
        warnings.warn(
            f"Metric objects ({', '.join(states[0]['objects'])}) begin their epoch anew: their values were gathered on "
            f"{len(states)} ranks, and there are {num_ranks} now.",
            stacklevel=2,
        )
    if len(states) == num_ranks:
        state = states[rank // num_alike]
        metrics.carried = {name: (total, weight) for name, (total, weight) in state.get("carried", {}).items()}
    elif rank == 0:
        state = {"micro_weights": [], "entries": _together([one["entries"] for one in states])}
    else:
        return
    entries = {name: _make_entry(name, one, metrics.num_windows) for name, one in state["entries"].items()}
    saved = state.get("objects", {})
    found = find_objects(module, list(saved))
    for path, value in found.items():
        restore_object(value, saved[path])
    for name, path in state.get("object_paths", {}).items():
        entries[name].object = found.get(path)
    metrics.go_on(entries, state["micro_weights"])


def _entry_state(entry: Entry, num_windows: int) -> dict[str, Any]:
    is_current = entry.num_windows == num_windows
    return {
        "options": [entry.name, entry.in_bar, entry.in_logger, entry.on_step, entry.on_epoch, entry.reduction],
        "is_reduced": entry.is_reduced,
        "total": _on_cpu(entry.total),
        "total_weight": _on_cpu(entry.total_weight),
        "pending": [[_on_cpu(v), _on_cpu(w), index] for v, w, index in entry.pending] if is_current else [],
    }


def _make_entry(name: str, state: dict[str, Any], num_windows: int) -> Entry:
    entry = Entry(*state["options"])
    entry.is_reduced = state["is_reduced"]
    entry.total, entry.total_weight = state["total"], state["total_weight"]
    entry.pending = [(value, weight, index) for value, weight, index in state["pending"]]
    entry.num_windows = num_windows if entry.pending else -1
    return entry


def _together(of_ranks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The entries of all ranks as those of one."""
    merged: dict[str, Any] = {}
    for states in of_ranks:
        for name, state in states.items():
            if name not in merged:
                merged[name] = {**state, "pending": []}
                continue
            one = merged[name]
            if not one["is_reduced"] or state["total"] is None:
                continue
            reduction = one["options"][-1]
            pick = {"min": min, "max": max}.get(reduction)
            if one["total"] is None:
                one["total"] = state["total"]
            else:
                one["total"] = pick(one["total"], state["total"]) if pick else one["total"] + state["total"]
            one["total_weight"] = one["total_weight"] + state["total_weight"]
    return merged


def _on_cpu(value: Any) -> Any:
    return value.detach().to("cpu", copy=True) if isinstance(value, Tensor) else value
