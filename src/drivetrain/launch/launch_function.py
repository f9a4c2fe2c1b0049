"""Run a function in several ranks on this machine, and get what it returns."""

from __future__ import annotations

import pickle
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from drivetrain.base.errors import ConfigError, LaunchError
from drivetrain.cluster.read_cluster import current_cluster
from drivetrain.launch import worker
from drivetrain.launch.forked_function import ForkedFunction
from drivetrain.launch.launch_script import DEFAULT_GRACE_S, worker_command, write_job
from drivetrain.launch.patience import DEFAULT_PATIENCE, Patience
from drivetrain.launch.world import check_may_launch


def launch_function(
    function: Callable[..., Any],
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    num_ranks: int,
    start: Literal["spawn", "fork"] = "spawn",
    max_restarts: int = 0,
    grace_s: float = DEFAULT_GRACE_S,
    patience: Patience = DEFAULT_PATIENCE,
    failure_folder: Path | None = None,
) -> list[Any]:
    """Call a function in each of `num_ranks` new processes and wait for all of them.

    `"spawn"` sends function and arguments by cloudpickle to fresh processes: they may come from `__main__`, a notebook
    cell or a closure, and no `if __name__ == "__main__"` is needed. Tensors are copied. `"fork"` sends nothing: the new
    processes begin as copies of this one, with one torch thread each. What the function returns comes back by
    cloudpickle both ways.

    Ranks: any, in a process that is not a rank; it may launch again afterwards, and from any thread.

    Args:
        function: Called in every rank.
        args: Its positional arguments.
        kwargs: Its named arguments.
        num_ranks: How many.
        start: How the processes begin.
        max_restarts: How often all ranks are started again after a failure.
        grace_s: What ranks get between SIGTERM to this process, which is passed on to them, and SIGKILL.
        patience: How long ranks may show nothing.
        failure_folder: Where a failure is written down.

    Returns:
        What the function returned, by rank.

    Raises:
        RankFailedError: A rank failed; the text ends with its traceback.
        LaunchError: The function cannot be sent, CUDA forbids a fork, or this process is a rank already.
    """
    from drivetrain.launch.run_ranks import run_ranks  # torch's elastic agent: only who launches pays for it

    check_may_launch(current_cluster(), num_ranks)
    if start not in ("spawn", "fork"):
        raise ConfigError(f"start={start!r} is not a way to start.", code="start-method", do='Use "spawn" or "fork".')
    named = dict(kwargs or {})
    with tempfile.TemporaryDirectory(prefix="drivetrain-") as name:
        directory = Path(name)
        entrypoint: str | Callable[..., None]
        if start == "spawn":
            entrypoint, arguments = sys.executable, (*worker_command(), str(_pack(directory, function, args, named)))
        else:
            entrypoint, arguments = ForkedFunction(function, args, named), ()
        folders = run_ranks(
            entrypoint,
            arguments,
            num_ranks=num_ranks,
            directory=directory,
            start_method=start,
            max_restarts=max_restarts,
            grace_s=grace_s,
            patience=patience,
            failure_folder=failure_folder,
        )
        return [_read_result(folder / worker.RESULT_NAME) for folder in folders]


def _pack(directory: Path, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Path:
    from drivetrain.launch.payload import dump_payload

    target = directory / "payload.pkl"
    try:
        target.write_bytes(dump_payload((function, args, kwargs)))
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError) as error:
        name = getattr(function, "__qualname__", repr(function))
        raise LaunchError(
            f"{name} and its arguments cannot be sent to another process: {error}",
            code="not-picklable",
            do='Make what cannot be sent inside the function, or start with "fork" (on Linux, before CUDA is used).',
        ) from error
    return write_job(directory, kind="function", target=str(target), path=sys.path, argv=sys.argv)


def _read_result(path: Path) -> Any:
    if not path.exists():  # sys.exit(0): a proper end that returns nothing
        return None
    with open(path, "rb") as file:
        return pickle.load(file)
