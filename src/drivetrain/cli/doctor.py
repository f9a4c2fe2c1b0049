"""`drivetrain doctor`: is this machine fit for a run?"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from drivetrain.cli.finding import Finding

_STYLES = {"ok": "green", "look": "yellow", "broken": "bold red"}


def add_doctor_arguments(parser: argparse.ArgumentParser) -> None:
    """What `drivetrain doctor` understands."""
    parser.add_argument("--ranks", type=int, default=2, help="try collectives between so many ranks; 0 for none")
    parser.add_argument("--folder", type=Path, default=Path(), help="of the checkpoints; by default the current one")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Look at everything; 1 if something is broken."""
    findings = examine(options.ranks, options.folder)
    if options.json:
        print(json.dumps([vars(one) for one in findings], indent=1))
    else:
        show(findings)
    return 1 if any(one.state == "broken" for one in findings) else 0


def examine(num_ranks: int, folder: Path) -> list[Finding]:
    """What the machine, its ranks and its disk are like."""
    from drivetrain.cli.machine_checks import (  # only here: they import torch
        check_devices,
        check_disk,
        check_network,
        check_threads,
        check_versions,
    )
    from drivetrain.cli.rank_checks import check_ranks
    from drivetrain.launch.worker_env import count_cores, current_env

    env = current_env()
    return [
        *check_versions(),
        *check_devices(),
        *check_threads(env, num_cores=count_cores()),
        *check_network(env),
        *check_ranks(num_ranks),
        *check_disk(folder),
    ]


def show(findings: Sequence[Finding], console: Console | None = None) -> None:
    """Print one table, and below it what to do."""
    console = console or Console()
    # A line that is cut at 80 columns says nothing where it is read by a program.
    console.width = console.width if console.is_terminal else 160
    table = Table("", "what", "how it is", "", show_edge=False)
    area = ""
    for one in findings:
        if one.area != area and area:
            table.add_section()
        shown = one.area if one.area != area else ""
        table.add_row(shown, Text(one.name), Text(one.value), Text(one.state, style=_STYLES[one.state]))
        area = one.area
    console.print(table)
    advised = [one for one in findings if one.state != "ok"]
    if not advised:
        console.print("\nNothing looks wrong.")
    for one in advised:
        console.print(Text(f"\n{one.state}: {one.area}, {one.name}: {one.value}\n    {one.advice}"))
