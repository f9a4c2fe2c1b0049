"""`drivetrain checkpoint`: look at checkpoints, check them, take the model out, compare two."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from drivetrain.checkpoint.differences import compare_tensors
from drivetrain.checkpoint.export import SUFFIXES, export_model
from drivetrain.checkpoint.inspect import Summary, find_checkpoints, summarise
from drivetrain.checkpoint.verify import problems


def add_checkpoint_commands(parser: argparse.ArgumentParser) -> None:
    """What `drivetrain checkpoint` understands."""
    commands = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    def add(name: str, action: Any, text: str) -> argparse.ArgumentParser:
        own = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        own.add_argument("--json", action="store_true", help="print JSON instead of text")
        own.set_defaults(run=action)
        return own

    listing = add("list", _list, "show the checkpoints of a run")
    listing.add_argument("folder", type=Path, nargs="?", default=Path(), help="of the run; by default the current one")
    listing.add_argument("--quick", action="store_true", help="compare names and sizes only, and read no file")
    verify = add("verify", _verify, "compare the SHA-256 of every file; exit status 1 if anything is not as written")
    verify.add_argument("path", type=Path, help="a checkpoint, or a folder of such")
    export = add("export", _export, "write the model alone to one file")
    export.add_argument("path", type=Path, help="a checkpoint, whatever strategy wrote it")
    export.add_argument("to", type=Path, help=f"a file that is not there yet; it ends in {' or '.join(SUFFIXES)}")
    diff = add("diff", _diff, "show which tensors of two checkpoints differ; exit status 1 if any does")
    diff.add_argument("left", type=Path, help="a checkpoint")
    diff.add_argument("right", type=Path, help="another one")
    for one in (export, diff):
        one.add_argument("--name", help="what the module was saved as (Trainer: model)")


def _list(options: argparse.Namespace) -> int:
    found = [summarise(path, is_read=not options.quick) for path in find_checkpoints(options.folder.absolute())]
    if options.json:
        _print_json([one.to_json() for one in found])
        return 0
    table = Table("checkpoint", "step", "epoch", "size", "ranks", "format", "monitored", "state")
    for one in found:
        table.add_row(*(Text(cell) for cell in _row(one, options.folder.absolute())))
    console = Console()
    # A line that is cut at 80 columns says nothing where it is read by a program.
    console.width = console.width if console.is_terminal else 400
    console.print(table)
    return 0


def _row(one: Summary, folder: Path) -> Sequence[str]:
    kind = f"{one.format or '?'}, {one.strategy or '?'}" + (", weights alone" if one.has_weights_alone else "")
    return (
        str(one.path.relative_to(folder)) if one.path != folder else one.path.name,
        _or_dash(one.step),
        _or_dash(one.epoch),
        "-" if one.size_bytes is None else _size(one.size_bytes),
        _or_dash(one.num_ranks),
        kind if one.format else "-",
        ", ".join(f"{name} {value:.5g}" for name, value in one.monitored.items()) or "-",
        ("; ".join(one.problems) or "whole") + (" (latest)" if one.is_latest else ""),
    )


def _verify(options: argparse.Namespace) -> int:
    found = {str(path): problems(path, is_thorough=True) for path in find_checkpoints(options.path.absolute())}
    if options.json:
        _print_json([{"path": path, "problems": own} for path, own in found.items()])
    else:
        for path, own in found.items():
            print("\n".join([f"{path}: {'damaged' if own else 'whole'}", *(f"    {line}" for line in own)]))
    return 1 if any(found.values()) else 0


def _export(options: argparse.Namespace) -> int:
    from drivetrain.strategies.saved_state import read_module  # only here: it takes a while to import

    state = read_module(options.path.absolute(), name=options.name)
    export_model(state, options.to.absolute())
    size_bytes = options.to.stat().st_size
    if options.json:
        _print_json({"path": str(options.to.absolute()), "num_tensors": len(state), "size_bytes": size_bytes})
    else:
        print(f"{options.to}: {len(state)} tensors, {_size(size_bytes)}")
    return 0


def _diff(options: argparse.Namespace) -> int:
    from drivetrain.strategies.saved_state import named_tensors, read_whole  # only here: it takes a while to import

    left, right = (
        named_tensors(read_whole(path.absolute(), name=options.name)) for path in (options.left, options.right)
    )
    found = compare_tensors(left, right)
    num_equal = len({*left, *right}) - len(found)
    if options.json:
        _print_json({"num_equal": num_equal, "differences": [vars(one) for one in found]})
    else:
        for one in found:
            print(f"{one.name}: {one.kind}, {one.detail}")
        print(f"{num_equal} tensors are equal, {len(found)} differ")
    return 1 if found else 0


def _print_json(value: Any) -> None:
    print(json.dumps(_finite(value), indent=1, allow_nan=False))


def _finite(value: Any) -> Any:
    """JSON has no inf and nan: they become text."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _or_dash(value: int | None) -> str:
    return "-" if value is None else str(value)


def _size(size_bytes: int) -> str:
    value = float(size_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"
