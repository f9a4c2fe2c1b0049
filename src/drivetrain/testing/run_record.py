"""What happens in a run, step by step, so that two runs can be compared."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from drivetrain.base.rng import capture_rng
from drivetrain.loggers.logger import Logger
from drivetrain.loop.callback import Callback


@dataclass(frozen=True)
class Event:
    """One thing that happened.

    Attributes:
        kind: `"micro-batch"`, `"row"` (of the loggers), `"validation"`, `"step"` or `"end"`.
        step: Optimizer steps done by then.
        values: What has to be the same, by name.
    """

    kind: str
    step: int
    values: dict[str, Any] = field(default_factory=dict)

    @property
    def in_words(self) -> str:
        """For a message."""
        if self.kind == "micro-batch":
            return f"a micro-batch after step {self.step} (samples {self.values['samples']})"
        if self.kind == "row":
            return f"a row of {', '.join(self.values)} at step {self.step}"
        return f"the {self.kind} {'of' if self.kind == 'end' else 'at'} step {self.step}"


class RunRecord(Callback):
    """Notes the samples of each micro-batch, each validation, and after each step everything that has to be the same.

    Args:
        samples: What tells the samples of a batch apart; by default the contents of its tensors.
    """

    def __init__(self, samples: Callable[[Any], Any] | None = None) -> None:
        self.events: list[Event] = []
        self.logger = RowRecord(self.events)
        self._samples = samples

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """The run is there."""
        self.logger.open(is_global_zero=trainer.is_global_zero)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Note the samples."""
        samples = digest(batch) if self._samples is None else _plain(self._samples(batch))
        self.events.append(Event("micro-batch", trainer.global_step, {"number": batch_idx, "samples": samples}))

    def on_step_end(self, trainer: Any, pl_module: Any) -> None:
        """Note the state."""
        self.events.append(Event("step", trainer.global_step, state_digests(trainer, pl_module)))

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Note it; not the one before training."""
        if not trainer.sanity_checking:
            self.events.append(Event("validation", trainer.global_step))

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Note the state at the end."""
        states = {
            f"state of {key}": digest(without_paths(one.state_dict()))
            for one in trainer.callbacks
            if (key := one.state_key) and one is not self
        }
        values = {**state_digests(trainer, pl_module), "epoch": trainer.current_epoch, **states}
        self.events.append(Event("end", trainer.global_step, values))


class RowRecord(Logger):
    """A logger that adds its rows to a record."""

    def __init__(self, events: list[Event]) -> None:
        self._events = events

    @property
    def name(self) -> str:
        """Of no experiment."""
        return "record"

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Note a row; see `Logger.log_metrics`."""
        if self.is_writing:
            self._events.append(Event("row", step or 0, {name: _plain(value) for name, value in metrics.items()}))

    def log_hyperparams(self, params: Any) -> None:
        """They do not change."""


def state_digests(trainer: Any, module: Any) -> dict[str, str]:
    """Of weights and buffers, optimizers, schedulers and random state: a digest for each name."""
    # Buffers of other ranks are replaced by those of rank 0 before they are used, and are in no checkpoint.
    weights = module.state_dict() if trainer.is_global_zero else dict(module.named_parameters())
    found = {f"weights {name!r}": digest(value) for name, value in weights.items()}
    for number, optimizer in enumerate(trainer.optimizers):
        state = optimizer.state_dict()
        for index, values in state["state"].items():
            found.update({f"optimizer {number}, {name} of parameter {index}": digest(v) for name, v in values.items()})
        groups = [{k: v for k, v in group.items() if k != "params"} for group in state["param_groups"]]
        found[f"optimizer {number}, options of its groups"] = digest(groups)
    for number, config in enumerate(trainer.lr_scheduler_configs):
        found[f"scheduler {number}"] = digest(config.scheduler.state_dict())
    found.update({f"random state of {name}": digest(value) for name, value in capture_rng().items()})
    return found


def digest(value: Any) -> str:
    """A short text that is equal for equal values: tensors bit for bit, mappings in any order."""
    sums = hashlib.blake2b(digest_size=12)
    _add(sums, value)
    return sums.hexdigest()


def _add(sums: Any, value: Any) -> None:
    if isinstance(value, Tensor):
        local = value.to_local() if hasattr(value, "to_local") else value
        flat = local.detach().to("cpu").contiguous().reshape(-1)
        sums.update(f"{value.dtype}{list(value.shape)}".encode())
        sums.update(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
    elif isinstance(value, Mapping):
        for key in sorted(value, key=str):
            sums.update(str(key).encode())
            _add(sums, value[key])
    elif isinstance(value, (list, tuple)):
        sums.update(str(len(value)).encode())
        for part in value:
            _add(sums, part)
    elif hasattr(value, "tobytes"):  # of NumPy
        sums.update(value.tobytes())
    else:
        sums.update(f"{type(value).__name__} {value!r}".encode())


def without_paths(value: Any) -> Any:
    """A state in which two runs in different directories are the same."""
    if isinstance(value, str):
        # A name that a lost step has used already gets a number.
        return re.sub(r"-v\d+(\.\w+)$", r"\1", os.path.basename(value))
    if isinstance(value, Mapping):
        return {without_paths(key): without_paths(part) for key, part in value.items() if key != "dirpath"}
    if isinstance(value, (list, tuple)):
        return [without_paths(part) for part in value]
    return value


def first_difference(expected: Sequence[Event], found: Sequence[Event]) -> str | None:
    """Where the first of two lists of events is another one; `None` if they are the same."""
    for one, other in zip(expected, found, strict=False):
        if (one.kind, one.step) != (other.kind, other.step):
            return f"{other.in_words} comes where the uninterrupted run has {one.in_words}"
        names = [name for name in {**one.values, **other.values} if not _same(one, other, name)]
        if names:
            return _in_words(one, other, names)
    if len(expected) > len(found):
        return f"it ends without {expected[len(found)].in_words}"
    if len(expected) < len(found):
        return f"it goes on with {found[len(expected)].in_words}"
    return None


def _same(one: Event, other: Event, name: str) -> bool:
    left, right = one.values.get(name), other.values.get(name)
    return bool(left == right) or (left != left and right != right)


def _in_words(one: Event, other: Event, names: Sequence[str]) -> str:
    if one.kind == "micro-batch":
        return f"{other.in_words} comes where the uninterrupted run has samples {one.values['samples']}"
    if one.kind == "row":
        values = [f"{name} is {other.values.get(name)} and not {one.values.get(name)}" for name in names[:3]]
        return f"in the row at step {one.step}, {', '.join(values)}"
    more = f", and {len(names) - 5} more" if len(names) > 5 else ""
    place = "at the end, " if one.kind == "end" else ""
    return f"{place}after step {one.step}: {', '.join(names[:5])}{more}"


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value
