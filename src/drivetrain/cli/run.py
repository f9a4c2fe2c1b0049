"""`drivetrain run`: start a program in several ranks, on this machine or, by torchrun, on several."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Literal

from drivetrain.base.errors import ConfigError


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """What `drivetrain run` understands; what follows the program's name is the program's."""
    parser.add_argument("--ranks", type=int, help="processes on this machine; by default one for each GPU, else one")
    parser.add_argument("--restarts", type=int, default=0, help="how often all ranks start again after a failure")
    parser.add_argument("--nodes", type=int, default=1, help="machines; start the same command on each of them")
    parser.add_argument("--rendezvous", metavar="HOST:PORT", help="where machines meet: one of them, and a free port")
    parser.add_argument("--run-id", default="drivetrain", help="the same on all machines; one for each run")
    parser.add_argument("-m", dest="is_module", action="store_true", help="the program is the name of a module")
    parser.add_argument("program", help="a script, or with -m a module")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="its arguments")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Start the ranks and wait for them.

    Raises:
        ConfigError: Machines without a place to meet, or a script that is not there.
        RankFailedError: A rank failed.
        SystemExit: All ranks called `sys.exit` with the same code.
    """
    from drivetrain.launch.failure_file import FAILURE_FOLDER
    from drivetrain.launch.launch_script import run_program, run_torchrun  # only here: it takes a while to import
    from drivetrain.launch.program import Program

    if not options.is_module and not Path(options.program).is_file():
        raise ConfigError(
            f"{options.program} is not a file.", code="run-program", do="Give a script, or -m and a module."
        )
    num_ranks = _num_gpus() or 1 if options.ranks is None else options.ranks
    if options.nodes > 1:
        run_torchrun(torchrun_arguments(options, num_ranks))
        return 0
    kind: Literal["module", "script"] = "module" if options.is_module else "script"
    program = Program(kind, options.program, tuple(options.arguments))
    run_program(program, num_ranks, max_restarts=options.restarts, failure_folder=Path(FAILURE_FOLDER))
    return 0


def torchrun_arguments(options: argparse.Namespace, num_ranks: int) -> list[str]:
    """What torchrun is told for several machines.

    Raises:
        ConfigError: There is no place to meet.
    """
    if not options.rendezvous:
        raise ConfigError(
            f"--nodes {options.nodes} without --rendezvous: the machines cannot find each other.",
            code="run-nodes",
            do="Give --rendezvous HOST:PORT, with one of the machines, on all of them.",
        )
    words = [
        f"--nnodes={options.nodes}",
        f"--nproc-per-node={num_ranks}",
        f"--max-restarts={options.restarts}",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={options.rendezvous}",
        f"--rdzv-id={options.run_id}",
    ]
    return [*words, *(["-m"] if options.is_module else []), options.program, *options.arguments]


def _num_gpus() -> int:
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0
