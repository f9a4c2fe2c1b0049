"""The whole grid: `python -m tests.resume`. Prints what differs, and how many of how many are the same."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from drivetrain.testing.rank_runner import RankRunner
from tests.resume.grid import CASES, HAS_STATEFUL_LOADER, RANKS_CASES, check_of, is_promised, stops_of


def main() -> int:
    """Run it."""
    start_s, num_same, num_all = time.monotonic(), 0, 0
    with tempfile.TemporaryDirectory() as root, RankRunner(2) as ranks:
        places = [(case, 1) for case in CASES] + [(case, 2) for case in RANKS_CASES]
        for number, (case, num_ranks) in enumerate(places):
            options = {"num_ranks": num_ranks, "ranks": ranks} if num_ranks > 1 else {}
            with check_of(case, Path(root) / str(number), **options) as check:
                stops = [stop for stop in stops_of(check) if is_promised(case, stop)]
                found = [(stop, check.difference(stop)) for stop in stops]
                twice = [(a, b) for a, b in zip(stops, stops[4:], strict=False) if b.step > a.step][::7]
                found += [(stop, check.difference(stop, other)) for stop, other in twice]
            different = [(stop, text) for stop, text in found if text is not None]
            num_all, num_same = num_all + len(found), num_same + len(found) - len(different)
            print(f"[{number + 1}/{len(places)}, {time.monotonic() - start_s:.0f} s] {case}, {num_ranks} ranks: "
                  f"{len(found) - len(different)} of {len(found)}", flush=True)  # fmt: skip
            for stop, text in different:
                print(f"    {stop}: {text}", flush=True)
    if not HAS_STATEFUL_LOADER:
        print("torchdata is not installed: StatefulDataLoader was left out.")
    print(f"{num_same} of {num_all} runs that were stopped and went on are the one that was not.")
    return int(num_same < num_all)


if __name__ == "__main__":
    sys.exit(main())
