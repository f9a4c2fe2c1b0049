"""Try faults: `python -m tests.faults [ROW ...] [--trials N] [--seed FIRST] [--smoke]`.

Each trial prints its seed; `python -m tests.faults R-01 --seed 17 --trials 1 --keep DIR` runs that one alone. What a
failed trial leaves stays in DIR.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported

import torch

from tests.faults.checks import BOUND_NAME
from tests.faults.reliability_page import Result, update
from tests.faults.row_soak import REFERENCE_NAME, SOAK_NAME
from tests.faults.rows import Row, all_rows
from tests.faults.trial import adopt_orphans, fork, wait_for

torch.set_num_threads(1)


def main() -> int:
    """Run the rows; 1 if any trial failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    rows = all_rows()
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"by default all: {', '.join(rows)}")
    parser.add_argument("--trials", type=int, help="instead of the row's own number")
    parser.add_argument("--smoke", action="store_true", help="a few trials of each row")
    parser.add_argument("--seed", type=int, default=0, help="of the first trial; each has the next")
    parser.add_argument("--first-step-s", type=float, default=10.0, help="how long a run may take to go on (I4)")
    parser.add_argument("--soak-s", type=float, help="how long the long run is (R-21); by default two hours")
    parser.add_argument("--reference", help="where `python -m tests.faults.row_soak` writes what R-21 is compared with")
    parser.add_argument("--keep", type=Path, help="leave the files of the trials here")
    parser.add_argument("--write", type=Path, help="put what came out into the table of this page")
    options = parser.parse_args()
    unknown = set(options.rows) - set(rows)
    if unknown:
        parser.error(f"no row {', '.join(sorted(unknown))}; there are {', '.join(rows)}")
    chosen = [rows[name] for name in options.rows] or list(rows.values())
    # What is started in the background, or by nohup, ignores these; the runs that are tried must not inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    results: list[Result] = []
    os.environ[BOUND_NAME] = str(options.first_step_s)
    if options.soak_s is not None:
        os.environ[SOAK_NAME] = str(options.soak_s)
    if options.reference is not None:
        os.environ[REFERENCE_NAME] = options.reference
    import_early()
    memory = Path("/dev/shm")  # a kill loses nothing there either, and a sync costs nothing
    place = memory if memory.is_dir() else None
    root = options.keep or Path(tempfile.mkdtemp(prefix="faults-", dir=place))
    try:
        for row in chosen:
            number = options.trials or (row.smoke if options.smoke else row.trials)
            if number:
                results.append(run_row(row, range(options.seed, options.seed + number), root / row.name))
            if options.write is not None:
                update(options.write, results)
    finally:
        if options.keep is None:
            shutil.rmtree(root, ignore_errors=True)
    return 1 if any(result.held < result.trials for result in results) else 0


def import_early() -> None:
    """Have everything imported that a rank needs, so that its forks begin at once."""
    import drivetrain.launch.run_ranks  # noqa: F401
    import tests.faults.training  # noqa: F401

    torch.optim.AdamW([torch.zeros(1)])  # what torch imports with the first optimizer takes seconds


def run_row(row: Row, seeds: range, root: Path) -> Result:
    """Run trials of a row, and say what came out."""
    print(f"{row.name}: {row.title}, {len(seeds)} trials", flush=True)
    failed = []
    start = time.monotonic()
    for number, seed in enumerate(seeds, 1):
        begin = time.monotonic()
        has_held, said = try_once(row, seed, root)
        if not has_held:
            failed.append(seed)
            print(said, flush=True)
        state = f"held: {'; '.join(said.splitlines())}" if has_held else "FAILED"
        print(f"{row.name} {number}/{len(seeds)} seed={seed} {time.monotonic() - begin:.1f} s {state}", flush=True)
    held = len(seeds) - len(failed)
    bound = f"; fewer than {100 * min(1.0, 3 / len(seeds)):.3g}% fail (95% bound)" if not failed else ""
    print(f"{row.name}: {held} of {len(seeds)}{bound}, in {time.monotonic() - start:.0f} s", flush=True)
    if failed:
        print(f"{row.name}: seeds that failed: {' '.join(map(str, failed))}", flush=True)
    return Result(row.name, row.title, held, len(seeds))


def try_once(row: Row, seed: int, root: Path) -> tuple[bool, str]:
    """One trial in a process of its own: whether all held, and what it wrote."""
    directory = root / f"seed-{seed}"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    console = root / f"seed-{seed}.txt"

    def trial() -> None:
        adopt_orphans()
        row.trial(seed, directory)

    with open(console, "wb") as file:
        exit_code = wait_for(fork(trial, 1 if row.is_shown else file.fileno()), row.timeout_s)
    said = console.read_text(encoding="utf-8", errors="replace")
    if exit_code == 0:
        shutil.rmtree(directory, ignore_errors=True)
        return True, said
    return False, f"{said}\ndid not end within {row.timeout_s} s" if exit_code is None else said


if __name__ == "__main__":
    sys.exit(main())
