"""What runs first in a rank that drivetrain starts. Standard library only.

It is started by path and does, in this order:

    end with the launcher          before torch is imported, so that no rank can outlive a launcher that died meanwhile
    run the user's program         a script, a module, a command or a pickled function
    write how it ended             an error file that torch's agent can read, or a marker of a proper end
    leave

A rank leaves by `os._exit` once everything that Python promises at exit has been done: finalisation of the interpreter
itself can abort while a gloo thread is alive (pytorch#190489, seen with torch 2.13).
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    del sys.path[0]  # the folder of this file: its neighbours must not shadow anything

import atexit
import contextlib
import ctypes
import faulthandler
import io
import json
import pickle
import pkgutil
import runpy
import signal
import threading
import time
import traceback
import types
from collections.abc import Callable
from multiprocessing import util as multiprocessing_util
from typing import Any

LAUNCHER_PID = "DRIVETRAIN_LAUNCHER_PID"
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
FINISHED_NAME = "finished"
RESULT_NAME = "result.pkl"
STACKS_NAME = "stacks.txt"
# A real-time signal: those with a name belong to users and schedulers.
DUMP_SIGNAL = signal.SIGRTMIN + 5 if hasattr(signal, "SIGRTMIN") else signal.SIGUSR2

_PR_SET_PDEATHSIG = 1
_POLL_S = 0.5


def main(job_path: str) -> None:
    """Run one rank to its end."""
    end_with_launcher(int(os.environ[LAUNCHER_PID]))
    show_stacks_on_signal()
    with open(job_path, encoding="utf-8") as file:
        job = json.load(file)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Lines of several ranks come out whole and at once, also under PYTHONUNBUFFERED, which writes them in parts.
        sys.stdout.reconfigure(line_buffering=True, write_through=False)
    sys.modules["drivetrain_worker"] = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    exit_code = report(lambda: _PROGRAMS[job["kind"]](job))
    leave(exit_code)


def end_with_launcher(launcher_pid: int) -> None:
    """Have this process killed when its launcher ends in any way, and its multiprocessing children with it."""
    if sys.platform == "linux":
        _kill_with_parent()
        multiprocessing_util.register_after_fork(main, _kill_child_with_rank)
    else:
        threading.Thread(target=_watch_parent, args=(launcher_pid,), daemon=True).start()
    if os.getppid() != launcher_pid:
        os._exit(1)


def show_stacks_on_signal() -> None:
    """Write what every thread does into a file when the launcher asks, also while C code holds Python's lock."""
    path = os.path.join(os.path.dirname(os.environ[ERROR_FILE]), STACKS_NAME)
    file = open(path, "w", encoding="utf-8")  # noqa: SIM115 (for as long as the process lives)
    faulthandler.register(DUMP_SIGNAL, file=file)


def _kill_with_parent() -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _kill_child_with_rank(_: object) -> None:
    # The kernel means the thread that forked: a child of a thread that ends before its process would be killed early.
    if type(threading.current_thread()).__name__ == "_MainThread":
        _kill_with_parent()


def _watch_parent(launcher_pid: int) -> None:
    while os.getppid() == launcher_pid:
        time.sleep(_POLL_S)
    os.kill(os.getpid(), signal.SIGKILL)


def report(program: Callable[[], None]) -> int:
    """Run a program and write the error file if it fails.

    Returns:
        The exit code that Python would give: 0 also for `sys.exit()` and `sys.exit(0)`.
    """
    try:
        program()
    except SystemExit as exit_:
        if exit_.code is None or exit_.code == 0:
            return 0
        if isinstance(exit_.code, int):
            exit_code = exit_.code & 0xFF or 1
        else:
            exit_code = 1
            print(exit_.code, file=sys.stderr)
        _write_error(exit_, kind="exited", exit_code=exit_code)
        return exit_code
    except KeyboardInterrupt as interrupt:
        _write_error(interrupt, kind="raised", exit_code=128 + signal.SIGINT)
        return 128 + signal.SIGINT
    except BaseException as error:
        _write_error(error, kind="raised", exit_code=1)
        return 1
    return 0


def _write_error(error: BaseException, *, kind: str, exit_code: int) -> None:
    seen = time.time()
    text = "".join(traceback.format_exception(type(error), error, _user_part(error.__traceback__)))
    headline = traceback.format_exception_only(type(error), error)[-1].strip()
    path, code = os.environ[ERROR_FILE], getattr(error, "code", "")
    data = {
        "message": {"message": headline, "extraInfo": {"py_callstack": text, "timestamp": str(int(seen))}},
        "drivetrain": {
            "rank": int(os.environ["RANK"]),
            "time": seen,
            "kind": kind,
            "exit_code": exit_code,
            "code": code if isinstance(code, str) else "",
        },
    }
    with open(path + ".part", "w", encoding="utf-8") as file:
        json.dump(data, file)
    os.replace(path + ".part", path)


def _user_part(trace: types.TracebackType | None) -> types.TracebackType | None:
    own = {__file__, "<frozen runpy>", runpy.__file__}
    part = trace
    while part is not None and part.tb_frame.f_code.co_filename in own:
        part = part.tb_next
    return part or trace


def mark_finished() -> None:
    """Say that this rank has come to its proper end."""
    with open(os.path.join(os.path.dirname(os.environ[ERROR_FILE]), FINISHED_NAME), "w", encoding="utf-8"):
        pass


def leave(exit_code: int) -> None:
    """End the process: threads are joined, exit functions run, streams flushed."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    ctypes.CDLL(None).fflush(None)
    if exit_code == 0:
        mark_finished()
    os._exit(exit_code)


# ---------------------------------------------------------------- programs


def _run_script(job: dict[str, Any]) -> None:
    path: str = job["target"]
    _restore(job)
    if pkgutil.get_importer(path) is not None or path.endswith(".pyc"):
        runpy.run_path(path, run_name="__main__")
        return
    _put_first(os.path.dirname(os.path.realpath(path)))
    with open(path, "rb") as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    module = sys.modules["__main__"]
    module.__file__ = path
    exec(code, module.__dict__)


def _run_module(job: dict[str, Any]) -> None:
    _restore(job)
    _put_first(os.getcwd())
    runpy.run_module(job["target"], run_name="__main__", alter_sys=True)


def _run_command(job: dict[str, Any]) -> None:
    _restore(job)
    _put_first("")
    exec(compile(job["target"], "<string>", "exec", dont_inherit=True), sys.modules["__main__"].__dict__)


def _run_function(job: dict[str, Any]) -> None:
    _restore(job)
    sys.path[:] = job["path"]
    with open(job["target"], "rb") as file:
        function, args, kwargs = pickle.load(file)
    call(function, args, kwargs)


def call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Call a function and leave what it returns for the launcher."""
    write_result(function(*args, **kwargs))


def write_result(result: Any) -> None:
    """Leave what the function returned for the launcher."""
    import cloudpickle

    path = os.path.join(os.path.dirname(os.environ[ERROR_FILE]), RESULT_NAME)
    with open(path, "wb") as file:
        cloudpickle.dump(result, file)


def _restore(job: dict[str, Any]) -> None:
    sys.argv[:] = job["argv"]
    sys.orig_argv[:] = job["orig_argv"]


def _put_first(folder: str) -> None:
    if not sys.flags.safe_path:
        sys.path.insert(0, folder)


_PROGRAMS = {"script": _run_script, "module": _run_module, "command": _run_command, "function": _run_function}

if __name__ == "__main__":
    main(sys.argv[1])
