"""What a run has left in its folder: metrics of a `CSVLogger` or TensorBoard events, time, hyperparameters."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drivetrain.base.errors import ConfigError
from drivetrain.base.optional import import_extra

METRICS_FILE = "metrics.csv"
EVENT_FILES = "events.out.tfevents.*"
TIME_FILE = "time_spent.json"
_NO_METRICS = ("step", "epoch", "hp_metric")


@dataclass
class RunRecord:
    """One run.

    Attributes:
        name: Short, and different from those of the other runs.
        path: The folder.
        series: Metric to steps and values, in the order of steps.
        parts_s: Where the time went, in seconds, if the run says so.
        total_s: All of it.
        num_ranks: How many, if the run says so.
        num_epochs: Epochs of the last row.
        hparams: Hyperparameters, flat.
    """

    name: str
    path: Path
    series: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    parts_s: dict[str, float] = field(default_factory=dict)
    total_s: float | None = None
    num_ranks: int | None = None
    num_epochs: int | None = None
    hparams: dict[str, Any] = field(default_factory=dict)

    @property
    def num_steps(self) -> int:
        """The last optimizer step of which something was logged."""
        return max((points[-1][0] for points in self.series.values() if points), default=0)


def read_runs(folders: Sequence[Path]) -> list[RunRecord]:
    """The runs in these folders, or below them.

    Raises:
        ConfigError: A folder holds no run.
        MissingExtraError: A run has TensorBoard events, and tensorboard is not installed.
    """
    paths: list[Path] = []
    for folder in folders:
        found = _find(folder)
        if not found:
            raise ConfigError(
                f"{folder} holds no run.",
                code="report-run",
                do=f"Give folders with a {METRICS_FILE} (CSVLogger) or {EVENT_FILES} (TensorBoardLogger).",
            )
        paths += [path for path in found if path not in paths]
    names = _names(paths)
    return [_read(path, name) for path, name in zip(paths, names, strict=True)]


def _find(folder: Path) -> list[Path]:
    files = [*folder.rglob(METRICS_FILE), *folder.rglob(EVENT_FILES)] if folder.is_dir() else []
    return sorted({file.parent for file in files}, key=_natural)


def _natural(path: Path) -> list[Any]:
    """`version_10` after `version_9`."""
    return [(int(part), "") if part.isdigit() else (-1, part) for name in path.parts for part in name.split("_")]


def _names(paths: Sequence[Path]) -> list[str]:
    """The parts of each path by which they differ: of `a/version_0` and `b/version_0` these are `a` and `b`."""
    parts = [path.absolute().parts for path in paths]
    while len(paths) > 1 and len({one[-1] for one in parts}) == 1:
        parts = [one[:-1] for one in parts]
    for length in range(1, max(map(len, parts), default=0)):
        names = ["/".join(one[-length:]) for one in parts]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in paths]


def _read(path: Path, name: str) -> RunRecord:
    run = RunRecord(name, path)
    points: dict[str, dict[int, float]] = {}
    rows = _csv_points(path / METRICS_FILE) if (path / METRICS_FILE).is_file() else _event_points(path)
    for metric, step, value in rows:
        points.setdefault(metric, {})[step] = value  # the last one that was written counts
    if points.get("epoch"):
        run.num_epochs = int(max(points["epoch"].values())) + 1
    run.series = {name: sorted(values.items()) for name, values in points.items() if name not in _NO_METRICS}
    _read_time(run)
    run.hparams = _read_hparams(path)
    return run


def _csv_points(path: Path) -> Iterator[tuple[str, int, float]]:
    with open(path, encoding="utf-8", newline="") as file:
        for row in csv.DictReader(line for line in file if line.endswith("\n")):
            try:
                step = int(float(row.get("step") or ""))
            except ValueError:
                continue
            for name, text in row.items():
                if name and name != "step" and isinstance(text, str) and (value := _number(text)) is not None:
                    yield name, step, value


def _event_points(path: Path) -> Iterator[tuple[str, int, float]]:
    module = import_extra(
        "tensorboard.backend.event_processing.event_accumulator", extra="tensorboard", purpose="drivetrain report"
    )
    events = module.EventAccumulator(str(path), size_guidance={module.SCALARS: 0})
    events.Reload()
    for name in events.Tags()[module.SCALARS]:
        for event in events.Scalars(name):
            yield name, int(event.step), float(event.value)


def _read_time(run: RunRecord) -> None:
    """Seconds by part: under `"parts_s"`, or as the file's only content."""
    try:
        told = json.loads((run.path / TIME_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    if not isinstance(told, dict):
        return
    parts = told.get("parts_s", told)
    if isinstance(parts, Mapping):
        run.parts_s = {
            str(name).removesuffix("_s"): float(value)
            for name, value in parts.items()
            if isinstance(value, (int, float)) and value > 0 and name not in ("total_s", "steps", "ranks")
        }
    total = told.get("total_s")
    run.total_s = float(total) if isinstance(total, (int, float)) else sum(run.parts_s.values()) or None
    run.num_ranks = told["ranks"] if isinstance(told.get("ranks"), int) else None


def _read_hparams(path: Path) -> dict[str, Any]:
    """Of `hparams.yaml`, and of `config.yaml`; where yaml is not installed, none."""
    try:
        import yaml
    except ImportError:
        return {}
    flat: dict[str, Any] = {}
    for name in ("config.yaml", "hparams.yaml"):
        try:
            told = yaml.safe_load((path / name).read_text(encoding="utf-8"))
        except (OSError, yaml.YAMLError):
            continue
        flat.update(_flat(told) if isinstance(told, dict) else {})
    return flat


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            flat.update(_flat(value, f"{prefix}{name}."))
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _number(text: str) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None


def finite(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Those points whose value is a finite number."""
    return [(step, value) for step, value in points if math.isfinite(value)]
