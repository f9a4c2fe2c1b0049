"""The `drivetrain` command."""

from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from drivetrain import __version__
from drivetrain.base.errors import DrivetrainError
from drivetrain.base.optional import import_extra
from drivetrain.cli.checkpoint import add_checkpoint_commands
from drivetrain.cli.doctor import add_doctor_arguments
from drivetrain.cli.report import add_report_arguments
from drivetrain.cli.run import add_run_arguments
from drivetrain.cli.stages import STAGES

# What each demo needs beyond drivetrain itself.
DEMOS = {"digits": ("sklearn", "matplotlib"), "text": ("matplotlib",)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: By default those of the process.

    Returns:
        The exit status: 1 for an error, and where a command found what it looks for to be wrong.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if words and words[0] in STAGES:
            return run_stage(words)
        options = make_parser().parse_args(words)
        status: int = options.run(options)
    except DrivetrainError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return status


def make_parser() -> argparse.ArgumentParser:
    """What the command understands. What follows a demo's name is for the demo."""
    parser = argparse.ArgumentParser(prog="drivetrain", description="Train PyTorch models on any number of ranks.")
    parser.add_argument("--version", action="version", version=f"drivetrain {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for stage, text in STAGES.items():
        commands.add_parser(stage, help=text, add_help=False)
    demo = commands.add_parser("demo", help="train one of the examples", description="Train one of the examples.")
    demo.add_argument("name", choices=sorted(DEMOS), help="which one")
    demo.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="...", help="its options; --help after the name lists them"
    )
    demo.set_defaults(run=_run_demo)
    text = "look at checkpoints, check them, export the model, compare two"
    checkpoint = commands.add_parser("checkpoint", help=text, description=f"{text[0].upper()}{text[1:]}.")
    add_checkpoint_commands(checkpoint)
    text = "draw metrics, learning rate, speed and time of runs as one page"
    add_report_arguments(commands.add_parser("report", help=text, description=f"{text[0].upper()}{text[1:]}."))
    text = "start a program in several ranks"
    add_run_arguments(commands.add_parser("run", help=text, description=f"{text[0].upper()}{text[1:]}."))
    text = "look at the machine: versions, devices, threads, network, ranks, disk"
    add_doctor_arguments(commands.add_parser("doctor", help=text, description=f"{text[0].upper()}{text[1:]}."))
    return parser


def run_stage(words: Sequence[str]) -> int:
    """Run a stage of a module that is named by its path; modules of the working directory are found.

    Raises:
        MissingExtraError: jsonargparse is not installed.
    """
    import_extra("jsonargparse", extra="cli", purpose=f"drivetrain {words[0]}")
    from drivetrain.cli.training_cli import CLI  # only here: it imports torch

    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    CLI(args=words)
    return 0


def _run_demo(options: argparse.Namespace) -> int:
    run_demo(options.name, options.arguments)
    return 0


def run_demo(name: str, arguments: Sequence[str]) -> None:
    """Run an example as the main program.

    Raises:
        MissingExtraError: A package that it needs is not installed.
    """
    for module in DEMOS[name]:
        import_extra(module, extra="demo", purpose=f"drivetrain demo {name}")
    script = find_demo(name)
    before = sys.argv
    sys.argv = [str(script), *arguments]
    try:
        runpy.run_path(str(script), run_name="__main__")
    finally:
        sys.argv = before


def find_demo(name: str) -> Path:
    """The example's file: beside this one when installed, in `examples/` in a checkout."""
    here = Path(__file__).resolve().parent
    folders = (here / "demos", here.parents[2] / "examples")
    found = [folder / f"{name}.py" for folder in folders if (folder / f"{name}.py").is_file()]
    if not found:
        raise FileNotFoundError(f"the example {name}.py is neither in {folders[0]} nor in {folders[1]}")
    return found[0]
