"""Write the page about hooks: `python -m tests.hooks [--write docs/hooks.md]`."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from drivetrain.testing.rank_runner import RankRunner
from tests.hooks.page import page
from tests.hooks.record import NUM_RANKS, record

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.hooks", description=__doc__)
    parser.add_argument("--write", type=Path, help="this page; by default it is printed")
    target = parser.parse_args().write
    with tempfile.TemporaryDirectory() as folder, RankRunner(NUM_RANKS) as runner:
        text = page(runner.run(record, folder, world=NUM_RANKS))
    if target is None:
        print(text, end="")
    else:
        target.write_text(text, encoding="utf-8")
