"""Run the current program again, once for each rank."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NoReturn

from drivetrain.base.errors import LaunchError
from drivetrain.cluster.read_cluster import current_cluster
from drivetrain.launch import worker
from drivetrain.launch.patience import DEFAULT_PATIENCE, Patience
from drivetrain.launch.program import Program, current_program, find_script
from drivetrain.launch.worker_env import env_for_a_while
from drivetrain.launch.world import check_may_launch

DEFAULT_GRACE_S = 30.0


def launch_script(
    num_ranks: int,
    *,
    max_restarts: int = 0,
    grace_s: float = DEFAULT_GRACE_S,
    patience: Patience = DEFAULT_PATIENCE,
    failure_folder: Path | None = None,
) -> NoReturn:
    """Run the program that called this again, from its first line, in `num_ranks` processes; then end this one.

    The program is found in `sys.orig_argv`: a script, `-m module`, `-c command` or a console script, with its arguments
    and interpreter options. In the new processes the environment says which rank they are, and the same call site must
    not launch again: ask `current_cluster().is_launched`. Everything before the call runs once more in each rank.

    Ranks: any, once, in a process that is not a rank.

    Args:
        num_ranks: How many.
        max_restarts: How often all ranks are started again after a failure.
        grace_s: What ranks get between SIGTERM to this process, which is passed on to them, and SIGKILL.
        patience: How long ranks may show nothing.
        failure_folder: Where a failure is written down.

    Raises:
        SystemExit: All ranks have ended: code 0, or the one with which all of them called `sys.exit`.
        RankFailedError: A rank failed; the text ends with its traceback.
        LaunchError: There is no program to run again, or this process is a rank already.
    """
    check_may_launch(current_cluster(), num_ranks)
    program = current_program()
    if program is None:
        raise LaunchError(
            "There is no script to run again: this Python is interactive, or reads its code from standard input.",
            code="no-script",
            do="In a notebook give Trainer(strategy='ddp_notebook'), or put the code in a function and call "
            "fabric.launch(main).\nOtherwise save the code in a file and run it with python.",
        )
    run_program(
        program, num_ranks, max_restarts=max_restarts, grace_s=grace_s, patience=patience,
        failure_folder=failure_folder,
    )  # fmt: skip
    raise SystemExit(0)


def run_program(
    program: Program,
    num_ranks: int,
    *,
    max_restarts: int = 0,
    grace_s: float = DEFAULT_GRACE_S,
    patience: Patience = DEFAULT_PATIENCE,
    failure_folder: Path | None = None,
) -> None:
    """Run a program in `num_ranks` new processes, each of which is told by the environment which rank it is.

    Ranks: any, in a process that is not a rank.

    Args:
        program: A script, module or command.
        num_ranks: How many.
        max_restarts: How often all ranks are started again after a failure.
        grace_s: What ranks get between SIGTERM to this process, which is passed on to them, and SIGKILL.
        patience: How long ranks may show nothing.
        failure_folder: Where a failure is written down.

    Raises:
        SystemExit: All ranks called `sys.exit` with the same code.
        RankFailedError: A rank failed; the text ends with its traceback.
        LaunchError: This process is a rank already.
    """
    from drivetrain.launch.run_ranks import run_ranks  # torch's elastic agent: only who launches pays for it

    check_may_launch(current_cluster(), num_ranks)
    target = find_script(program) if program.kind == "script" else program.target
    with tempfile.TemporaryDirectory(prefix="drivetrain-") as name:
        job = write_job(Path(name), kind=program.kind, target=target, argv=program.argv)
        run_ranks(
            sys.executable,
            (*worker_command(), str(job)),
            num_ranks=num_ranks,
            directory=Path(name),
            start_method="spawn",
            max_restarts=max_restarts,
            grace_s=grace_s,
            patience=patience,
            failure_folder=failure_folder,
        )


def run_torchrun(words: list[str]) -> None:
    """What `torchrun` does with these arguments, for ranks on several machines.

    Ranks: any, in a process that is not a rank.
    """
    from torch.distributed.run import main  # only who launches pays for it

    # Shared, the store of a failed attempt is met by the next one (pytorch#135712, seen with torch 2.13).
    with env_for_a_while({"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}):
        main(words)


def worker_command() -> list[str]:
    """The interpreter options of this process, and the file that a rank starts with."""
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [*flags, worker.__file__]


def write_job(directory: Path, **job: Any) -> Path:
    """Write what a rank has to run. Not as arguments: torch replaces `$` in those."""
    path = directory / "job.json"
    path.write_text(json.dumps(job | {"orig_argv": sys.orig_argv}), encoding="utf-8")
    return path
