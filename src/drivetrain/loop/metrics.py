"""Logged values: kept on the device, weighted, and read back only when they are shown or written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from drivetrain.base.errors import LoggingError
from drivetrain.comm.collectives import Collectives
from drivetrain.loop.reduced_values import Said, finish, reduce_values

_REDUCTIONS = ("mean", "sum", "min", "max")


class Entry:
    """One logged name: its options, the values of the current window, and the sums of the epoch."""

    __slots__ = (
        "in_bar", "in_logger", "is_reduced", "name", "num_windows", "object", "on_epoch", "on_step", "pending",
        "reduction", "total", "total_weight",
    )  # fmt: skip

    def __init__(self, name: str, in_bar: bool, in_logger: bool, on_step: bool, on_epoch: bool, reduction: str) -> None:
        self.name = name
        self.in_bar = in_bar
        self.in_logger = in_logger
        self.on_step = on_step
        self.on_epoch = on_epoch
        self.reduction = reduction
        self.is_reduced = True
        self.object: Any = None
        self.pending: list[tuple[Any, Any, int]] = []  # value, weight or None, micro-batch of the window
        self.num_windows = -1  # the window that `pending` belongs to
        self.total: Any = None  # of the epoch
        self.total_weight: Any = 0

    def add_to_epoch(self, value: Any, weight: Any) -> None:
        """Add one value to the epoch's sum, minimum or maximum."""
        if self.reduction in ("min", "max"):
            pick = torch.minimum if self.reduction == "min" else torch.maximum
            value = torch.as_tensor(value)
            self.total = value.clone() if self.total is None else pick(self.total, value)
        else:
            part = value if self.reduction == "sum" else _weighted(value, weight)
            if isinstance(part, Tensor) and part.device.type != "mps":
                part = part.double()
            self.total = part if self.total is None else self.total + part
        self.total_weight = self.total_weight + weight


def _weighted(value: Any, weight: Any) -> Any:
    """Value times weight; 0 for a weight of 0, since a mean over nothing is nan."""
    if isinstance(weight, Tensor):
        return torch.where(weight == 0, 0.0, value * weight)
    return value * weight if weight else 0.0


class MetricStore:
    """All logged values of a run.

    The loop says where it is (`begin_window`, `end_micro_batch`, `begin_epoch`); `log` only notes values.

    Attributes:
        collectives: Over which values are reduced when they are reported.
        is_log_step: Values of the step that was just made are written.
        callback_metrics: Reported values by name, 0-dim tensors; equal on all ranks.
        logged_metrics: What was last written to the loggers.
        carried: By name, the sums of a window that goes on in the next epoch: value x weight, and weights.
    """

    def __init__(self, collectives: Collectives) -> None:
        self.collectives = collectives
        self.entries: dict[str, Entry] = {}
        self.callback_metrics: dict[str, Tensor] = {}
        self.logged_metrics: dict[str, float] = {}
        self.reported: dict[str, float] = {}  # of the last report, unrounded
        self.place = "none"  # "train", "evaluate", "epoch_end" or "none"
        self.samples: Any = 1  # weight of what is logged now
        self.loader_suffix = ""
        self.num_windows = 0
        self.is_log_step = False
        self.micro_weights: list[Any] = []
        self.carried: dict[str, tuple[Any, Any]] = {}
        self._bar_names: dict[str, None] = {}  # of all stages, in the order in which they came up
        self._touched: list[tuple[Entry, Any, Any]] = []
        self._kept: dict[str, tuple[Any, Any]] = {}
        self._set_aside: dict[str, Entry] | None = None
        self._saved: tuple[dict[str, Entry], list[Any]] | None = None
        self._computed: list[Any] = []  # metric objects, since the last ones were reset

    # ---------------------------------------------------------------- where the loop is

    def begin_window(self) -> None:
        """A window begins: values of steps start anew."""
        if self._touched:
            self._add_late()
        self.num_windows += 1
        self.micro_weights = []

    def keep_totals(self) -> None:
        """A window begins that may have to run again: the sums of the epoch as they are now."""
        self._kept = {name: (entry.total, entry.total_weight) for name, entry in self.entries.items()}

    def restart_window(self) -> None:
        """The window runs again: what was logged in it is forgotten. Metric objects keep what they were given."""
        self._touched.clear()
        for name, entry in self.entries.items():
            entry.total, entry.total_weight = self._kept.get(name, (None, 0))
        self.begin_window()

    def carry_window(self) -> None:
        """The window goes on in the next epoch: what was logged in it counts there, too."""
        entries = [e for e in self.entries.values() if e.on_step and e.num_windows == self.num_windows]
        self.carried |= {entry.name: self._of_window(entry) for entry in entries}
        for entry in entries:
            entry.num_windows = -1  # it is carried once

    def end_micro_batch(self, weight: Any) -> None:
        """A micro-batch is done: what was logged in it has this weight."""
        self.micro_weights.append(weight)
        if self._touched:
            self._add_late()

    def _add_late(self) -> None:
        """Add what was logged since the last call: in hooks after a micro-batch it has that one's weight."""
        weight = self.micro_weights[-1] if self.micro_weights else 1
        for entry, value, own in self._touched:
            entry.add_to_epoch(value, weight if own is None else own)
        self._touched.clear()

    def begin_epoch(self, place: str) -> None:
        """An epoch of training or evaluation begins: its sums start anew."""
        self._add_late()
        self.place = place
        self.micro_weights = []
        self.entries = {}
        if place == "train" and self._saved is not None:
            (self.entries, self.micro_weights), self._saved = self._saved, None
            self._bar_names.update({name: None for name, entry in self.entries.items() if entry.in_bar})

    @contextmanager
    def set_aside(self) -> Iterator[None]:
        """What was logged in the epoch waits for a block, in which others begin."""
        entries, place, weights = self.entries, self.place, self.micro_weights
        self._add_late()
        self._set_aside = entries
        try:
            yield
        finally:
            self._set_aside = None
            self.entries, self.place, self.micro_weights = entries, place, weights

    def train_entries(self) -> dict[str, Entry]:
        """What was logged in this epoch of training, also while a validation runs."""
        self._add_late()
        return self.entries if self._set_aside is None else self._set_aside

    def go_on(self, entries: dict[str, Entry], micro_weights: list[Any]) -> None:
        """The next epoch of training goes on with these values."""
        self._saved = (entries, micro_weights)

    def end_evaluation(self) -> None:
        """All batches are evaluated: a value that is logged now counts once, without a weight."""
        self._add_late()
        self.place, self.loader_suffix = "epoch_end", ""

    # ---------------------------------------------------------------- log

    def log(
        self, name: str, value: Any, prog_bar: bool, logger: bool, on_step: bool | None, on_epoch: bool | None,
        reduce_fx: Any, is_reduced: bool, batch_size: Any, add_dataloader_idx: bool = True,
    ) -> None:  # fmt: skip
        """Note one value. See `Module.log`."""
        if self.loader_suffix and add_dataloader_idx:
            name = f"{name}{self.loader_suffix}"
        entry = self.entries.get(name)
        if entry is None:
            entry = self._new_entry(name, prog_bar, logger, on_step, on_epoch, reduce_fx, is_reduced)
        elif self.place == "epoch_end" and not entry.on_epoch:
            raise LoggingError(
                f"log({name!r}) was called at the end of an epoch, but {name!r} is logged as a value of steps.",
                code="log-place",
                do="Use another name here, or on_epoch=True where it is logged first.",
            )
        if isinstance(value, Tensor):
            if value.numel() != 1:
                raise LoggingError(
                    f"log({name!r}) got a tensor of shape {list(value.shape)}.",
                    code="log-value",
                    do="Log one number for a name: take its mean, or log each under its own name.",
                )
            value = value.detach()
            if value.ndim:
                value = value.reshape(())
        elif not isinstance(value, (int, float)):
            value = _read_object(entry, name, value)
            if value is None:
                return
        if entry.on_step:
            if entry.num_windows != self.num_windows:
                entry.num_windows = self.num_windows
                entry.pending = []
            entry.pending.append((value, batch_size, len(self.micro_weights)))
        if entry.on_epoch and entry.object is None:
            if self.place == "epoch_end":
                entry.total, entry.total_weight = None, 0
                entry.add_to_epoch(value, 1 if batch_size is None else batch_size)
            else:
                self._touched.append((entry, value, batch_size))

    def _new_entry(
        self, name: str, in_bar: bool, in_logger: bool, on_step: bool | None, on_epoch: bool | None, reduce_fx: Any,
        is_reduced: bool,
    ) -> Entry:  # fmt: skip
        if not isinstance(name, str):
            raise LoggingError(f"log got the name {name!r}.", code="log-name", do="Use a string.")
        if self.place == "none":
            raise LoggingError(
                f"log({name!r}) was called where nothing reports it.",
                code="log-place",
                do="Log in a step, or in a hook that runs inside an epoch.",
            )
        is_training = self.place == "train"
        entry = Entry(
            name,
            in_bar,
            in_logger,
            (is_training if on_step is None else on_step) and self.place != "epoch_end",
            (not is_training if on_epoch is None else on_epoch) or self.place == "epoch_end",
            _reduction_of(name, reduce_fx),
        )
        entry.is_reduced = is_reduced
        self.entries[name] = entry
        if in_bar:
            self._bar_names[name] = None
        return entry

    # ---------------------------------------------------------------- report

    def report_step(self) -> dict[str, float]:
        """Values of the window that just ended, for the loggers: reduced over ranks, in one fused message.

        Ranks: all.
        """
        entries = [e for e in self.entries.values() if e.on_step and e.pending and e.num_windows == self.num_windows]
        return self._publish(*self._reduce({_step_name(e): (e, *self._of_window(e)) for e in entries}))

    def report_epoch(self, *, is_last: bool = True) -> dict[str, float]:
        """Values of the epoch that just ended, reduced over ranks in one fused message; then they start anew.

        Ranks: all.

        Args:
            is_last: Metric objects are reset; otherwise another report follows, and hooks before it may read them.

        Returns:
            Those for the loggers.
        """
        self._add_late()
        objects = [e for e in self.entries.values() if e.on_epoch and e.object is not None]
        entries = [e for e in self.entries.values() if e.on_epoch and e.object is None]
        parts = {_epoch_name(e): (e, e.total, e.total_weight) for e in entries if e.total is not None}
        values, said = self._reduce(parts)
        for entry in objects:
            name = _epoch_name(entry)
            values[name], said[name] = float(entry.object.compute()), _said(entry)
            self._computed.append(entry.object)
            entry.object = None  # until it is logged again: an epoch is reported before and after its last hooks
        if is_last:
            for one in self._computed:
                one.reset()
            self._computed = []
        for entry in entries:
            entry.total, entry.total_weight = None, 0
        self.reported = values
        return self._publish(values, said)

    def _publish(self, values: dict[str, float], said: dict[str, Said]) -> dict[str, float]:
        """Make values readable on every rank, whichever rank logged them; returns those for the loggers."""
        for name, value in values.items():
            self.callback_metrics[said[name].name] = self.callback_metrics[name] = torch.tensor(value)
        return {name: value for name, value in values.items() if said[name].in_logger}

    def bar_values(self) -> dict[str, float]:
        """What the progress bar shows; reads it back from the device.

        Values of steps are this rank's current ones, others those of the last report: of validation, for example.

        Ranks: any.
        """
        shown: dict[str, float] = {}
        for name in list(self._bar_names):
            entry = self.entries.get(name)
            if entry is not None and entry.on_step and entry.pending:
                total, weight = self._of_window(entry)
                shown[name] = finish(entry.reduction, [(float(total), float(weight))])
            elif name in self.callback_metrics:
                shown[name] = float(self.callback_metrics[name])
        return shown

    def _of_window(self, entry: Entry) -> tuple[Any, Any]:
        """Sum of value x weight, and sum of weights, over the micro-batches of the window."""
        one = Entry(entry.name, False, False, False, True, entry.reduction)
        one.total, one.total_weight = self.carried.get(entry.name, (None, 0))
        for value, weight, index in entry.pending:
            if weight is None:
                weight = self.micro_weights[index] if index < len(self.micro_weights) else self.samples
            one.add_to_epoch(value, weight)
        return one.total, one.total_weight

    def _reduce(self, parts: dict[str, tuple[Entry, Any, Any]]) -> tuple[dict[str, float], dict[str, Said]]:
        """Reduce sums over ranks, and divide. One read-back and at most one message for all names of all ranks."""
        own = _read_back({name: (total, weight) for name, (_, total, weight) in parts.items()})
        said = {name: _said(entry) for name, (entry, _, _) in parts.items()}
        return reduce_values(self.collectives, own, said)


def _said(entry: Entry) -> Said:
    return Said(entry.name, entry.reduction, entry.is_reduced, entry.in_logger)


def _read_back(parts: dict[str, tuple[Any, Any]]) -> dict[str, tuple[float, float]]:
    """All tensors of a device in one copy."""
    tensors = [x for pair in parts.values() for x in pair if isinstance(x, Tensor)]
    if not tensors:
        return {name: (float(a), float(b)) for name, (a, b) in parts.items()}
    dtype = torch.float32 if tensors[0].device.type == "mps" else torch.float64
    device = tensors[0].device
    numbers = iter(torch.stack([tensor.to(device, dtype) for tensor in tensors]).tolist())
    return {
        name: tuple(next(numbers) if isinstance(x, Tensor) else float(x) for x in pair)  # type: ignore[misc]
        for name, pair in parts.items()
    }


def _read_object(entry: Entry, name: str, value: Any) -> Any:
    """A metric object: computed when the epoch is reported, and for a step from what its last `forward` gave."""
    if not (hasattr(value, "compute") and hasattr(value, "reset")):
        raise LoggingError(
            f"log({name!r}) got a {type(value).__name__}.",
            code="log-value",
            do="Log a number, a tensor of one element, or a metric object with update, compute and reset.",
        )
    entry.object = value
    if not entry.on_step:
        return None
    return getattr(value, "_forward_cache", None)


def _reduction_of(name: str, reduce_fx: Any) -> str:
    reduction = reduce_fx if isinstance(reduce_fx, str) else getattr(reduce_fx, "__name__", repr(reduce_fx))
    reduction = "mean" if reduction == "avg" else reduction
    if reduction not in _REDUCTIONS:
        raise LoggingError(
            f"log({name!r}) got reduce_fx={reduce_fx!r}.", code="log-reduction", do=f"Use {', '.join(_REDUCTIONS)}."
        )
    return reduction


def _step_name(entry: Entry) -> str:
    return f"{entry.name}_step" if entry.on_epoch else entry.name


def _epoch_name(entry: Entry) -> str:
    return f"{entry.name}_epoch" if entry.on_step else entry.name
