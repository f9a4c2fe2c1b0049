"""Write the page about names: `python -m tests.protocol [--write docs/protocol.md]`."""

from __future__ import annotations

import argparse
from pathlib import Path

from tests.protocol.page import page

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.protocol", description=__doc__)
    parser.add_argument("--write", type=Path, help="this page; by default it is printed")
    target = parser.parse_args().write
    if target is None:
        print(page(), end="")
    else:
        former = target.read_text(encoding="utf-8") if target.is_file() else ""
        target.write_text(page(former), encoding="utf-8")
