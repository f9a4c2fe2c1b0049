"""The figures of a report: colours and line styles that can be told apart, axes with names and units."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from drivetrain.base.optional import import_extra
from drivetrain.cli.run_reader import RunRecord, finite

# Okabe and Ito 2008: told apart also by who sees no red or green. Their yellow is left out: it is lost on white.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_DASHES = ("-", "--", ":", "-.")
_HATCHES = ("", "//", "..", "xx", "\\\\", "++", "oo")
_STAGE = re.compile(r"^(train|training|val|valid|validation|test)[_/-]")
_WHEN = re.compile(r"_(step|epoch)$")
_SMOOTHED_FROM = 150
_GB = 1e9
_LABELS = {
    "throughput/steps_per_s": "optimizer steps / s",
    "throughput/samples_per_s": "samples / s",
    "throughput/tokens_per_s": "tokens / s",
    "throughput/flops_per_s": "operations / s",
    "throughput/mfu": "part of the peak that is used",
    "cpu/busy_processors": "processors kept busy",
}


@dataclass
class Panel:
    """One figure of a report.

    Attributes:
        section: Under which heading it stands.
        title: What it shows.
        names: Metrics in it.
        label: Of the vertical axis.
        scale: Values are divided by it.
    """

    section: str
    title: str
    names: list[str]
    label: str
    scale: float = 1.0


def make_panels(runs: Sequence[RunRecord]) -> list[Panel]:
    """Which metrics stand in which figure: those of one name in training and evaluation together."""
    panels: dict[str, Panel] = {}
    for name in sorted({name for run in runs for name, points in run.series.items() if finite(points)}):
        panel = _panel_of(name)
        panels.setdefault(f"{panel.section} {panel.title}", panel).names += [name]
    order = {
        section: index for index, section in enumerate(("Loss", "Metrics", "Learning rate", "Throughput", "Memory"))
    }
    return sorted(panels.values(), key=lambda one: (order.get(one.section, len(order)), one.title))


def _panel_of(name: str) -> Panel:
    if name.startswith("throughput/"):
        return Panel("Throughput", name.partition("/")[2], [], _LABELS.get(name, name))
    if re.match(r"lr(-|$)", name):
        is_momentum = name.endswith("-momentum")
        return Panel(
            "Learning rate",
            "momentum" if is_momentum else "learning rate",
            [],
            "momentum" if is_momentum else "learning rate",
        )
    if "bytes" in name:
        what = name.replace("_bytes", "").replace("/", " ").replace("_", " ")
        return Panel("Memory", what, [], f"{what} (GB)", _GB)
    if name.startswith(("device/", "cpu/", "sync/")):
        return Panel("Device and sync", name, [], _LABELS.get(name, name))
    base = _WHEN.sub("", _STAGE.sub("", name))
    section = "Loss" if "loss" in base else "Metrics"
    return Panel(section, base, [], base.replace("_", " "))


def draw(panel: Panel, runs: Sequence[RunRecord]) -> Any:
    """A figure of curves over optimizer steps."""
    figure, axes = _figure((7.2, 4.2))
    shown: list[float] = []
    number = 0
    for at, run in enumerate(runs):
        for which, name in enumerate(panel.names):
            points = finite(run.series.get(name, []))
            if not points:
                continue
            # Curves that lie on each other show through: runs have dashes of their own where metrics need none.
            color, dash = _style(at, which if len(panel.names) > 1 else at, number, several=len(runs) > 1)
            number += 1
            label = _label(run, name, panel, several=len(runs) > 1)
            is_smoothed = panel.section in ("Loss", "Metrics") and len(points) >= _SMOOTHED_FROM
            values = [value / panel.scale for _, value in points]
            _draw_curve(axes, [step for step, _ in points], values, color, dash, label, is_smoothed=is_smoothed)
            shown += values
    if panel.section in ("Throughput", "Memory"):
        axes.set_ylim(0, 1.1 * max(shown) or 1)
    else:
        _set_scale(axes, shown, is_rate=panel.section == "Learning rate")
    axes.set_xlabel("optimizer step")
    axes.set_ylabel(panel.label)
    axes.xaxis.get_major_locator().set_params(integer=True)
    if number > 1:
        axes.legend(frameon=False, fontsize=8.5, ncols=2 if number > 6 else 1)
    return figure


def _label(run: RunRecord, name: str, panel: Panel, *, several: bool) -> str:
    if not several:
        return name
    return run.name if len(panel.names) == 1 else f"{run.name}: {name}"


def _style(run: int, name: int, number: int, *, several: bool) -> tuple[str, str]:
    """One run: a colour for each metric. Several: a colour for each run, a dash for each metric."""
    if not several:
        return COLORS[number % len(COLORS)], _DASHES[number // len(COLORS) % len(_DASHES)]
    return COLORS[run % len(COLORS)], _DASHES[(name + run // len(COLORS)) % len(_DASHES)]


def _draw_curve(
    axes: Any, steps: Sequence[int], values: Sequence[float], color: str, dash: str, label: str, *, is_smoothed: bool
) -> None:
    if is_smoothed:
        axes.plot(steps, values, "-", color=color, linewidth=0.6, alpha=0.25)
        axes.plot(steps, smooth(values), dash, color=color, linewidth=1.8, label=f"{label} (smoothed)")
        return
    marker = "o" if len(steps) <= 25 else None
    axes.plot(steps, values, dash, color=color, linewidth=1.6, marker=marker, markersize=3.5, label=label)


def smooth(values: Sequence[float]) -> list[float]:
    """An exponential mean over about a fiftieth of the points, without a bias to its start."""
    keep = 1 - 50 / max(len(values), 100)
    mean, smoothed = 0.0, []
    for number, value in enumerate(values, start=1):
        mean = keep * mean + (1 - keep) * value
        smoothed.append(mean / (1 - keep**number))
    return smoothed


def _set_scale(axes: Any, values: Sequence[float], *, is_rate: bool) -> None:
    """Logarithmic where values above 0 span more than two orders (a learning rate: three)."""
    if values and min(values) > 0 and max(values) / min(values) > (1000 if is_rate else 100):
        axes.set_yscale("log")


def draw_time(runs: Sequence[RunRecord]) -> Any:
    """A bar for each run, cut into where its time went."""
    told = [run for run in runs if run.parts_s]
    totals: dict[str, float] = {}
    for run in told:
        for name, seconds in run.parts_s.items():
            totals[name] = totals.get(name, 0.0) + seconds
    names = sorted(totals, key=lambda name: -totals[name])
    figure, axes = _figure((7.2, 1.7 + 0.5 * len(told)))
    factor, unit = _time_unit(max(sum(run.parts_s.values()) for run in told))
    left = [0.0] * len(told)
    for index, name in enumerate(names):
        widths = [run.parts_s.get(name, 0.0) / factor for run in told]
        style = {"color": COLORS[index % len(COLORS)], "hatch": _HATCHES[index // len(COLORS) % len(_HATCHES)]}
        bars = axes.barh(
            [run.name for run in told],
            widths,
            left=left,
            height=0.6,
            edgecolor="white",
            label=name.replace("_", " "),
            **style,
        )
        for bar, width, run in zip(bars, widths, told, strict=True):
            part = width * factor / sum(run.parts_s.values())
            if part >= 0.06:
                dark = style["color"] in ("#0072B2", "#D55E00", "#009E73", "#000000")
                x, y = bar.get_x() + width / 2, bar.get_y() + bar.get_height() / 2
                axes.text(
                    x, y, f"{part:.0%}", ha="center", va="center", fontsize=8.5, color="white" if dark else "black"
                )
        left = [before + width for before, width in zip(left, widths, strict=True)]
    axes.set_xlabel(f"time ({unit})")
    axes.invert_yaxis()
    axes.grid(False)
    figure.legend(frameon=False, fontsize=8.5, loc="outside lower center", ncols=min(len(names), 5))
    return figure


def _time_unit(seconds: float) -> tuple[float, str]:
    for factor, unit in ((3600.0, "hours"), (60.0, "minutes")):
        if seconds >= 2 * factor:
            return factor, unit
    return 1.0, "seconds"


def _figure(size: tuple[float, float]) -> tuple[Any, Any]:
    module = import_extra("matplotlib.figure", extra="plots", purpose="drivetrain report")
    figure = module.Figure(figsize=size, layout="constrained")
    axes = figure.add_subplot()
    axes.grid(alpha=0.3)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure, axes


def short(value: float | None) -> str:
    """Four digits."""
    if value is None:
        return "-"
    return f"{value:.4g}" if math.isfinite(value) else str(value)
