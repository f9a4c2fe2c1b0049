"""What `import drivetrain` costs beyond `import torch`.

python -m benchmarks.import_time [--rounds 10] [--out FILE.md]
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence

from benchmarks.rounds import measure_rounds
from benchmarks.table import give_out, markdown, ratio_cells, section, values_of

KEY = "ms"

# label -> statement; the first is what the others are compared with
IMPORTS = {
    "import torch": "import torch",
    "import drivetrain": "import drivetrain",
    "import torch, drivetrain": "import torch, drivetrain",
    "from drivetrain import Trainer": "from drivetrain import Trainer",
    "from drivetrain import Fabric": "from drivetrain import Fabric",
}

_PROGRAM = """\
import json, time
begin = time.perf_counter()
{statement}
print(json.dumps({{"ms": (time.perf_counter() - begin) * 1e3}}))
"""


def main(arguments: Sequence[str] | None = None) -> str:
    """Measure, print the section, write it if asked; return it."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(prog="python -m benchmarks.import_time")
    parser.add_argument("--rounds", type=int, default=10, help="measurements of each import, after one that warms up")
    parser.add_argument("--out", help="also write the table here")
    asked = parser.parse_args(given)
    readings = measure_rounds(
        list(IMPORTS),
        lambda label: [sys.executable, "-c", _PROGRAM.format(statement=IMPORTS[label])],
        num_rounds=asked.rounds + 1,
        show=lambda reading: f"{reading[KEY]:8.1f} ms",
    )
    readings = {label: values[1:] for label, values in readings.items()}  # the first reads files from the disk
    base = readings["import torch"]
    rows = []
    for label, own in readings.items():
        values = values_of(own, KEY)
        if not values:
            rows.append([label, "failed", *[""] * 4])
            continue
        over = min(values) - min(values_of(base, KEY)) if values_of(base, KEY) else float("nan")
        rows.append(
            [
                label,
                f"{statistics.median(values):.0f}",
                f"{min(values):.0f}",
                f"{over:+.0f}",
                *ratio_cells(own, base, KEY),
            ]
        )
    header = (
        "statement",
        "median, ms",
        "least, ms",
        "over torch, ms",
        "of minima",
        "ratio by round: min / median / max",
    )
    notes = [f"{asked.rounds} rounds; one fresh interpreter for each reading, files in the page cache."]
    table = markdown(header, rows)
    text = section("Import time", [table], notes, module="benchmarks.import_time", arguments=given)
    give_out(text, asked.out)
    return text


if __name__ == "__main__":
    main()
