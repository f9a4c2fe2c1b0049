"""`drivetrain report`."""

from __future__ import annotations

import json
import math
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from drivetrain import CSVLogger, TensorBoardLogger
from drivetrain.cli.main import main
from drivetrain.cli.report import file_names
from drivetrain.cli.report_figures import draw, draw_time, make_panels, smooth
from drivetrain.cli.run_reader import RunRecord, read_runs

pytest.importorskip("matplotlib")


def write_run(logger: Any, *, rate: float = 0.1, num_steps: int = 20) -> Path:
    """A run as the trainer logs it."""
    logger.log_hyperparams({"rate": rate, "hidden": 8})
    logger.open(is_global_zero=True)
    for step in range(2, num_steps + 1, 2):
        values = {"loss": 1 / step, "lr-SGD": rate, "throughput/samples_per_s": 100.0, "cpu/peak_resident_bytes": 2e9}
        logger.log_metrics({**values, "epoch": step // 10}, step=step)
    logger.log_metrics({"val_loss": 0.5, "val_acc": 0.9, "epoch": num_steps // 10}, step=num_steps)
    logger.finalize("success")
    return Path(logger.log_dir)


def csv_run(folder: Path, **options: Any) -> Path:
    return write_run(CSVLogger(folder, name="a"), **options)


class Page(HTMLParser):
    """What is in a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.sources: list[str] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        given = dict(attrs)
        self.sources += [given[name] for name in ("src", "href") if name in given]
        if tag == "img":
            self.words.append(given["alt"])
        if tag not in ("img", "meta"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_a_run_becomes_one_page_and_its_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Curves could be seen only where a dashboard is installed; a page that is sent would lack its pictures."""
    run = csv_run(tmp_path)
    (run / "time_spent.json").write_text(
        json.dumps({"total_s": 130.0, "ranks": 2, "parts_s": {"data": 30.0, "step": 90}})
    )
    out = tmp_path / "report.html"
    assert main(["report", str(run), "-o", str(out)]) == 0
    names = ["acc", "cpu-peak-resident", "learning-rate", "loss", "samples-per-s", "where-the-time-went"]
    assert sorted(path.name for path in (tmp_path / "report").iterdir()) == [f"{name}.png" for name in names]
    assert capsys.readouterr().out == f"{out}: 1 run, 6 figures, also in {tmp_path}/report/\n"
    page = Page(out.read_text())
    assert page.open == [] and len(page.sources) == 6
    assert all(source.startswith("data:image/png;base64,") for source in page.sources)
    assert {"Loss", "Metrics", "Learning rate", "Throughput", "Memory", "Time", "loss over optimizer steps"} <= set(
        page.words
    )
    assert {"20", "3", "2", "2.2 min"} <= set(page.words)


def test_events_of_tensorboard_are_read_too(tmp_path: Path) -> None:
    """Runs of the other logger could not be compared."""
    pytest.importorskip("tensorboard")
    (one,) = read_runs([csv_run(tmp_path / "csv")])
    (other,) = read_runs([write_run(TensorBoardLogger(tmp_path / "tb", name="a"))])
    assert set(one.series) == set(other.series)
    for name, points in one.series.items():
        assert [step for step, _ in other.series[name]] == [step for step, _ in points]
        assert [value for _, value in other.series[name]] == pytest.approx([value for _, value in points], rel=1e-6)
    assert (one.num_steps, one.num_epochs) == (other.num_steps, other.num_epochs) == (20, 3)


def test_runs_are_compared(tmp_path: Path) -> None:
    """To see which run is better, one would lay two pages beside each other."""
    first, second = csv_run(tmp_path, rate=0.1), csv_run(tmp_path, rate=0.2)
    runs = read_runs([tmp_path])
    assert [(run.name, run.path) for run in runs] == [("version_0", first), ("version_1", second)]
    (panel,) = [one for one in make_panels(runs) if one.title == "loss"]
    axes = draw(panel, runs).axes[0]
    labels = [line.get_label() for line in axes.lines]
    assert labels == ["version_0: loss", "version_0: val_loss", "version_1: loss", "version_1: val_loss"]
    looks = [(line.get_color(), line.get_linestyle()) for line in axes.lines]
    assert len(set(looks)) == 4 and len({color for color, _ in looks}) == 2
    out = tmp_path / "r.html"
    main(["report", str(first), str(second), "-o", str(out)])
    words = Page(out.read_text()).words
    at = words.index("Hyperparameters that differ")
    assert words[at + 1 : at + 7] == ["name", "version_0", "version_1", "rate", "0.1", "0.2"]


def test_names_are_the_parts_that_differ(tmp_path: Path) -> None:
    """Every run would be called version_0."""
    paths = [write_run(CSVLogger(tmp_path, name=name)) for name in ("small", "large")]
    assert [run.name for run in read_runs(paths)] == ["small", "large"]
    assert [run.name for run in read_runs(paths[:1])] == ["version_0"]


def test_axes_have_names_and_units(tmp_path: Path) -> None:
    """A curve of which nobody knows what it is of."""
    runs = read_runs([csv_run(tmp_path)])
    labels = {}
    for panel in make_panels(runs):
        axes = draw(panel, runs).axes[0]
        labels[panel.title] = (axes.get_xlabel(), axes.get_ylabel())
        assert axes.lines
    assert labels == {
        "loss": ("optimizer step", "loss"),
        "acc": ("optimizer step", "acc"),
        "learning rate": ("optimizer step", "learning rate"),
        "samples_per_s": ("optimizer step", "samples / s"),
        "cpu peak resident": ("optimizer step", "cpu peak resident (GB)"),
    }
    (memory,) = [panel for panel in make_panels(runs) if panel.section == "Memory"]
    assert set(draw(memory, runs).axes[0].lines[0].get_ydata()) == {2.0}


@pytest.mark.parametrize(
    "told",
    [
        {"total_s": 90.0, "steps": 4, "ranks": 2, "parts_s": {"data": 30.0, "backward": 60.0}},
        {"data_s": 30.0, "backward_s": 60.0},
        {"data": 30.0, "backward": 60.0, "total_s": 90.0, "steps": 4, "ranks": 2, "note": "x"},
    ],
)
def test_the_account_of_time_is_read_in_each_form(told: Any, tmp_path: Path) -> None:
    """A part named otherwise would be lost, or the whole be counted as a part."""
    run = csv_run(tmp_path)
    (run / "time_spent.json").write_text(json.dumps(told))
    (read,) = read_runs([run])
    assert (read.parts_s, read.total_s) == ({"data": 30.0, "backward": 60.0}, 90.0)
    axes = draw_time([read]).axes[0]
    assert [bar.get_width() for bar in axes.patches] == [60.0, 30.0] and axes.get_xlabel() == "time (seconds)"
    assert [text.get_text() for text in axes.texts] == ["67%", "33%"]


@pytest.mark.parametrize("text", ["", "[1]", "{broken", '{"parts_s": 3}'])
def test_an_account_that_cannot_be_read_is_left_out(text: str, tmp_path: Path) -> None:
    """A file that a killed run left half written would cost the whole report."""
    run = csv_run(tmp_path)
    (run / "time_spent.json").write_text(text)
    assert read_runs([run])[0].parts_s == {}


def test_values_that_are_not_finite_are_said(tmp_path: Path) -> None:
    """A run that diverged would look like one that went on."""
    (tmp_path / "metrics.csv").write_text("step,loss,empty\n1,0.5,\n2,nan,\n3,inf,\n4,0.25,\n5,0.2")
    (run,) = read_runs([tmp_path])
    assert [step for step, _ in run.series["loss"]] == [1, 2, 3, 4] and list(run.series) == ["loss"]
    out = tmp_path / "r.html"
    assert main(["report", str(tmp_path), "-o", str(out)]) == 0
    assert any("2 values of loss are not finite" in word for word in Page(out.read_text()).words)


def test_noisy_steps_are_smoothed_and_stay_visible() -> None:
    """A curve of ten thousand steps is a grey bar; a smoothed one alone hides the noise."""
    points = [(step, 1.0 + (-1) ** step) for step in range(400)]
    run = RunRecord("a", Path(), {"loss": points, "lr-SGD": points})
    loss, rate = (draw(panel, [run]).axes[0].lines for panel in make_panels([run]))
    assert len(loss) == 2 and list(loss[0].get_ydata()) == [value for _, value in points]
    assert all(abs(value - 1) < 0.2 for value in loss[1].get_ydata()[100:])
    assert len(rate) == 1, "a learning rate is what it is"
    assert smooth([3.0] * 200) == pytest.approx([3.0] * 200)


def test_a_loss_over_many_orders_has_a_logarithmic_axis() -> None:
    """Everything after the first steps would lie on the axis."""
    run = RunRecord("a", Path(), {"loss": [(step, math.exp(-step)) for step in range(10)], "acc": [(1, 0.0), (2, 1.0)]})
    scales = [draw(panel, [run]).axes[0].get_yscale() for panel in make_panels([run])]
    assert scales == ["log", "linear"]


def test_a_speed_begins_at_zero() -> None:
    """A slow first row would bend the axis, and small changes would look large."""
    run = RunRecord("a", Path(), {"throughput/steps_per_s": [(1, 1.0), (2, 400.0), (3, 410.0)]})
    axes = draw(make_panels([run])[0], [run]).axes[0]
    assert (axes.get_yscale(), axes.get_ylim()) == ("linear", (0.0, pytest.approx(451.0)))


def test_names_of_pictures_differ() -> None:
    """One picture would be written over another."""
    assert file_names(["a/b", "a b", "x"]) == ["a-b.png", "a-b-2.png", "x.png"]


def test_names_cannot_break_the_page(tmp_path: Path) -> None:
    """A metric named by its user would be read as a part of the page."""
    (tmp_path / "metrics.csv").write_text("step,<script>\n1,0.5\n2,0.4\n")
    out = tmp_path / "r.html"
    assert main(["report", str(tmp_path), "-o", str(out)]) == 0
    assert "<script>" not in out.read_text()


@pytest.mark.parametrize(("name", "code"), [("r.html", "report-run"), ("r.pdf", "report-out")])
def test_what_cannot_be_reported_is_said(
    name: str, code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An empty page, or one in a file that no browser opens."""
    assert main(["report", str(tmp_path), "-o", str(tmp_path / name)]) == 1
    assert f"[{code}]" in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_without_matplotlib_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A traceback instead of the line that installs it."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["report", str(csv_run(tmp_path))]) == 1
    assert "drivetrain[plots]" in capsys.readouterr().err
