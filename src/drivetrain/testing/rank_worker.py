"""One rank of a `RankRunner`: imports torch once, then runs one function after another. Started by path."""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import pickle
import signal
import sys
import traceback
from multiprocessing.connection import Connection
from typing import Any


def main(options: dict[str, Any]) -> None:
    """Serve calls until the runner closes its end."""
    sys.path[:] = options["path"]
    from drivetrain.launch.worker import end_with_launcher

    end_with_launcher(options["launcher_pid"])
    stacks = open(options["stacks"], "w", encoding="utf-8")  # noqa: SIM115 - open as long as the process lives
    faulthandler.enable(file=stacks)
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
    import torch

    torch.set_num_threads(1)
    calls = Connection(options["calls"], writable=False)
    answers = Connection(options["answers"], readable=False)
    answers.send_bytes(b"ready")
    num_modules = 0
    while True:
        if len(sys.modules) > num_modules:
            num_modules = len(sys.modules)
            gc.collect()
            gc.freeze()  # what is imported stays: the collections of each call need not go through it
        try:
            call = pickle.loads(calls.recv_bytes())
        except EOFError:
            break
        answers.send_bytes(answer(call))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def answer(call: dict[str, Any]) -> bytes:
    """Run one call and leave the process as it was."""
    import cloudpickle

    from drivetrain.launch.worker_env import env_for_a_while

    sys.path[:] = call["path"]
    with env_for_a_while(call["env"]):
        try:
            function, args = pickle.loads(call["payload"])
            reply = ("returned", function(*args))
            return bytes(cloudpickle.dumps(reply))
        except BaseException as error:
            text = traceback.format_exc()
            try:
                return bytes(cloudpickle.dumps(("raised", (error.with_traceback(None), text))))
            except Exception:
                return bytes(cloudpickle.dumps(("raised", (None, text))))
        finally:
            _leave_process_group()


def _leave_process_group() -> None:
    import torch.distributed as dist

    from drivetrain.launch.store_watch import end_store_watch

    end_store_watch()  # the store goes with the call
    if dist.is_initialized():
        gc.collect()
        dist.destroy_process_group()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
