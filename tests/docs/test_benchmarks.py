"""The benchmarks run, and their tables hold what they are read for; how long anything takes is not asserted."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.wire_link import why_impossible

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 100
LONG_S = 280  # two loops with two ranks each, two of which wait until it is sure that they hang
ROUNDING = 1e-12
DRIVETRAIN = ("drivetrain `Trainer`", "drivetrain `Fabric`")

pytestmark = pytest.mark.slow


def run_benchmark(module: str, arguments: Sequence[str], *, timeout_s: float = TIMEOUT_S) -> str:
    """What a benchmark prints on standard output."""
    paths = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def rows_of(text: str) -> dict[str, list[str]]:
    """The rows of a section's tables by their first cell."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {first: rest for first, *rest in cells}


def test_the_cost_of_verification_is_measured_beside_the_load() -> None:
    """A figure of the documentation could not be made again."""
    printed = run_benchmark("benchmarks.checkpoint", ["--size-mb", "16", "--rounds", "1"])
    cells = [line.split("|")[1:3] for line in printed.splitlines() if line.startswith("| ")]
    assert {(name.strip(), where.strip()) for name, where in cells[1:]} == {
        (name, where)
        for name in ("load", "verify", "verify, load", "SHA-256, load")
        for where in ("in the page cache", "on the disk")
    }


def test_the_cost_of_a_step_is_measured_for_each_loop(tmp_path: Path) -> None:
    """A figure of the README could not be made again, or would compare different trainings."""
    names = "raw,drivetrain_loop,drivetrain_bare,drivetrain_logging"
    out = tmp_path / "overhead.md"
    printed = run_benchmark(
        "benchmarks.overhead", ["--rounds", "1", "--steps", "40", "--peers", names, "--out", str(out)]
    )
    rows = rows_of(printed)
    assert list(rows)[1:] == [
        "hand-written PyTorch",
        "drivetrain Fabric, raw loop",
        "drivetrain Trainer, bare",
        "drivetrain Trainer, defaults and one log",
    ]
    assert all(float(rows[label][0]) > 0 for label in list(rows)[1:])
    assert "All came to the same last loss" in printed
    assert f"python -m benchmarks.overhead --rounds 1 --steps 40 --peers {names}" in printed
    assert out.read_text(encoding="utf-8") == printed


@pytest.mark.timeout(LONG_S + 20)
def test_what_a_long_run_uses_is_measured() -> None:
    """A process that grows would be found by who trains for weeks."""
    rows = rows_of(run_benchmark("benchmarks.long_run", ["--steps", "200"]))
    assert list(rows)[1:] == ["Trainer, bare", "Trainer, one log, checkpoints"]
    for cells in list(rows.values())[1:]:
        assert len(cells[0].split(",")) == 10
        assert len({part.strip() for part in cells[2].split("/")}) == 1


def test_each_step_of_drivetrain_is_exact_where_the_usual_loop_is_not(tmp_path: Path) -> None:
    """The benchmark would praise what is wrong, or could not tell it from what is right."""
    written = tmp_path / "exactness.md"
    arguments = ["--quick", "--peers", "drivetrain_windows", "--write", str(written)]
    run_benchmark("benchmarks.exactness", arguments, timeout_s=LONG_S)
    page = written.read_text(encoding="utf-8")
    rows = [row[1:] for table in tables_of(page) for row in table[1:]]
    assert max(float(row[-1]) for row in rows) < ROUNDING
    usual = [row[0] for row in rows]
    assert [cell for cell in usual if "hangs" in cell] == ["hangs (1)", "hangs (1)"]
    is_exact = [float(cell.split()[0]) < ROUNDING for cell in usual if "hangs" not in cell]
    assert is_exact == [True, False, False, False, True, False, False, True, False]
    assert "(1) rank 0 makes no progress for 10 s after 4 steps." in page
    assert f"python -m benchmarks.exactness --quick --peers drivetrain_windows --write {written}" in page
    assert written.with_suffix(".svg").exists()

    committed = (ROOT / "docs" / "exactness.md").read_text(encoding="utf-8")
    assert headings_of(committed) == headings_of(page)
    assert [[row[0] for row in table] for table in tables_of(committed)] == [
        [row[0] for row in table] for table in tables_of(page)
    ]
    assert [len(table[0]) - 1 for table in tables_of(committed)] == [5, 5, 6]
    for table in tables_of(committed):
        assert all(float(row[table[0].index(name)]) < ROUNDING for row in table[1:] for name in DRIVETRAIN)


def test_ways_to_send_less_are_measured_beside_the_exact_one() -> None:
    """The page on sending less would show figures that nobody can make again."""
    problem = why_impossible("none")
    if problem is not None:
        pytest.skip(problem)
    names = "drivetrain_windows,drivetrain_bf16,drivetrain_local_sgd,drivetrain_diloco"
    rows = rows_of(
        run_benchmark(
            "benchmarks.wire",
            ["--rate", "none", "--rounds", "1", "--steps", "2", "--window", "2", "--width", "256", "--peers", names],
        )
    )
    ratio = {label: float(cells[1]) for label, cells in rows.items() if label != "loop"}
    assert ratio["drivetrain Fabric, windows"] == pytest.approx(1, abs=0.02)
    assert ratio["windows, gradients in bf16 (not exact)"] == pytest.approx(0.5, abs=0.02)
    assert ratio["windows, LocalSGD every 8 steps (not exact)"] == pytest.approx(1 / 8, abs=0.02)
    assert ratio["windows, DiLoCo every 50 steps (not exact)"] <= 0.03


def test_the_grid_of_windows_is_measured() -> None:
    """Its table would hold figures of a grid that is not run, or hide what is not right."""
    rows = rows_of(run_benchmark("benchmarks.grid", ["--ranks", "1"]))
    assert list(rows)[:3] == ["strategy", "single_device, float64", "ddp, float64"]
    for label in list(rows)[1:3]:
        ranks, runs, worst, *_, problems = rows[label]
        assert (ranks, problems) == ("1", "0")
        assert int(runs) > 4 * 8 * 4 and float(worst) < ROUNDING


def headings_of(page: str) -> list[str]:
    """Its headings, in order."""
    return [line for line in page.splitlines() if line.startswith("#")]


def tables_of(page: str) -> list[list[list[str]]]:
    """The cells of its tables, rule lines left out."""
    blocks = [block for block in page.split("\n\n") if block.startswith("|")]
    return [
        [[cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines() if "--" not in line]
        for block in blocks
    ]


def test_what_a_save_beside_training_costs_is_measured(tmp_path: Path) -> None:
    """The figure for which saves beside training are there could not be made again."""
    options = ["--megabytes", "13", "--rounds", "1", "--directory", str(tmp_path)]
    rows = rows_of(run_benchmark("benchmarks.async_save", options))
    assert {"a save that waits", "training stops for a save beside it", "while a checkpoint is written"} <= set(rows)
    assert list(tmp_path.iterdir()) == []


def test_what_safety_costs_is_measured() -> None:
    """Its figure could not be made again, or a message crept in that each step has to wait for."""
    options = ["--rounds", "1", "--steps", "10", "--step-ms", "3", "--save-every", "5"]
    rows = rows_of(run_benchmark("benchmarks.safety", options))
    with_safety, without = rows["watched, agreed, hashed"], rows["none of it"]
    assert with_safety[0] == without[0] != "0.00" and float(with_safety[1]) > 0


def test_the_cost_of_a_step_on_two_ranks_is_measured_for_the_same_training() -> None:
    """The figure could not be made again, or would compare different trainings."""
    names = "raw,drivetrain_bare,drivetrain_synced"
    printed = run_benchmark("benchmarks.ddp_overhead", ["--rounds", "1", "--steps", "30", "--peers", names])
    rows = rows_of(printed)
    assert len(rows) == 4 and "failed" not in printed
    assert "All came to the same last loss" in printed


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("marginal", ["--steps", "30"], {"a logged value", "a callback with one hook"}),
        ("epoch_gap", ["--epochs", "4"], {"hand-written PyTorch", "drivetrain Trainer, bare"}),
        ("start_up", [], {"Trainer(), the first", "fit, until the end of the first step"}),
    ],
)
def test_the_small_costs_are_measured(name: str, options: list[str], expected: set[str]) -> None:
    """A figure of the README could not be made again."""
    rows = rows_of(run_benchmark(f"benchmarks.{name}", ["--rounds", "1", *options]))
    assert expected <= set(rows)
    assert all(float(rows[one][0]) == float(rows[one][0]) for one in expected)
