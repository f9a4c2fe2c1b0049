"""`drivetrain report`: curves, time and figures of runs as one page, and as pictures."""

from __future__ import annotations

import argparse
import base64
import html
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from drivetrain.base.errors import ConfigError
from drivetrain.base.files import write_text_atomically
from drivetrain.base.optional import import_extra
from drivetrain.cli.report_figures import Panel, draw, draw_time, make_panels, short
from drivetrain.cli.run_reader import RunRecord, finite, read_runs

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; background: #fff; max-width: 1500px; margin: 2rem auto;
  padding: 0 1.5rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; border-bottom: 1px solid #ddd; }
.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 560px), 1fr)); gap: 1.5rem; }
figure { margin: 0; } figure img { width: 100%; height: auto; } figcaption { font-weight: 600; }
table { border-collapse: collapse; font-size: 14px; } th, td { padding: .25rem .8rem; text-align: right; }
th:first-child, td:first-child { text-align: left; } tr + tr td { border-top: 1px solid #eee; }
thead th { border-bottom: 1px solid #999; } .wide { overflow-x: auto; } .note { color: #666; }
"""


def add_report_arguments(parser: argparse.ArgumentParser) -> None:
    """What `drivetrain report` understands."""
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="a run's log folder, or a folder of such")
    parser.add_argument("-o", "--out", type=Path, default=Path("report.html"), help="the page; pictures go beside it")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Write the page and the pictures.

    Raises:
        ConfigError: A folder holds no run, or nothing was logged.
        MissingExtraError: matplotlib is not installed.
    """
    import_extra("matplotlib.figure", extra="plots", purpose="drivetrain report")
    if options.out.suffix != ".html":
        raise ConfigError(f"-o {options.out} is not a page.", code="report-out", do="Let it end in .html.")
    runs = read_runs(options.runs)
    figures = make_figures(runs)
    if not figures:
        raise ConfigError(
            f"No metric was logged in {', '.join(str(one.path) for one in runs)}.",
            code="report-run",
            do="Log values with self.log, and let the run go on to the first row (log_every_n_steps).",
        )
    folder = options.out.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    for name, (_, _, picture) in zip(file_names([title for _, title, _ in figures]), figures, strict=True):
        (folder / name).write_bytes(picture)
    write_text_atomically(options.out.absolute(), make_page(runs, figures))
    print(f"{options.out}: {len(runs)} run{'s' if len(runs) > 1 else ''}, {len(figures)} figures, also in {folder}/")
    return 0


def make_figures(runs: Sequence[RunRecord]) -> list[tuple[str, str, bytes]]:
    """Section, title and PNG of each figure."""
    figures = [(panel.section, _title(panel), _png(draw(panel, runs))) for panel in make_panels(runs)]
    if any(run.parts_s for run in runs):
        figures.append(("Time", "where the time went", _png(draw_time(runs))))
    return figures


def _title(panel: Panel) -> str:
    return panel.title.replace("_", " ")


def _png(figure: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150)
    return buffer.getvalue()


def file_names(titles: Sequence[str]) -> list[str]:
    """A name for each picture, all of them different."""
    names: list[str] = []
    for title in titles:
        stem = name = re.sub(r"[^\w.-]+", "-", title).strip("-") or "figure"
        number = 1
        while f"{name}.png" in names:
            number += 1
            name = f"{stem}-{number}"
        names.append(f"{name}.png")
    return names


# ---------------------------------------------------------------- page


def make_page(runs: Sequence[RunRecord], figures: Sequence[tuple[str, str, bytes]]) -> str:
    """One page that needs nothing else."""
    title = html.escape(runs[0].name if len(runs) == 1 else f"{len(runs)} runs")
    parts = [f"<h1>{title}</h1>", _table(*_summary(runs)), _notes(runs)]
    section = ""
    for own, name, picture in figures:
        if own != section:
            parts.append(f"{'</div>' if section else ''}<h2>{html.escape(own)}</h2><div class='figures'>")
        section = own
        data, text = base64.b64encode(picture).decode(), html.escape(name)
        about = text if own == "Time" else f"{text} over optimizer steps"
        parts.append(f"<figure><figcaption>{text}</figcaption>")
        parts.append(f"<img alt='{about}' src='data:image/png;base64,{data}'></figure>")
    parts.append("</div>" if section else "")
    for heading, table in (("Values", _values(runs)), ("Hyperparameters that differ", _differences(runs))):
        if table[1]:
            parts.append(f"<h2>{heading}</h2>{_table(*table)}")
    body = "\n".join(part for part in parts if part)
    head = f"<meta charset='utf-8'><meta name='viewport' content='width=device-width'><title>{title}</title>"
    return (
        f"<!doctype html><html lang='en'><head>{head}<style>{_STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<div class='wide'><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def _summary(runs: Sequence[RunRecord]) -> tuple[list[str], list[list[str]]]:
    header = ["run", "steps", "epochs", "ranks", "time", "folder"]
    rows = [
        [
            run.name,
            f"{run.num_steps:,}",
            _or_dash(run.num_epochs),
            _or_dash(run.num_ranks),
            _time(run.total_s),
            str(run.path),
        ]
        for run in runs
    ]
    return header, rows


def _values(runs: Sequence[RunRecord]) -> tuple[list[str], list[list[str]]]:
    """Last, least and greatest value of each metric in each run."""
    rows = []
    for name in sorted({name for run in runs for name in run.series}):
        for run in runs:
            points = finite(run.series.get(name, []))
            if points:
                values = [value for _, value in points]
                rows.append([name, run.name, *map(short, (values[-1], min(values), max(values))), str(len(values))])
    return ["metric", "run", "last", "least", "greatest", "points"], rows


def _differences(runs: Sequence[RunRecord]) -> tuple[list[str], list[list[str]]]:
    names = sorted({name for run in runs for name in run.hparams})
    rows = [[name, *(str(run.hparams.get(name, "-")) for run in runs)] for name in names]
    return ["name", *(run.name for run in runs)], [row for row in rows if len(set(row[1:])) > 1]


def _notes(runs: Sequence[RunRecord]) -> str:
    lost = [
        f"{run.name}: {number} value{'s' if number > 1 else ''} of {name} {'are' if number > 1 else 'is'} not finite"
        for run in runs
        for name, points in run.series.items()
        if (number := len(points) - len(finite(points)))
    ]
    return f"<p class='note'>{html.escape('; '.join(lost))}.</p>" if lost else ""


def _or_dash(value: int | None) -> str:
    return "-" if value is None else str(value)


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
