"""Run by test_import in a process of its own: what importing the package changed, as JSON on the last line.

Args: what to do after `import drivetrain`: `nothing`, or `names` to use every public name.
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

HEAVY = ("rich", "fsspec", "matplotlib", "tensorboard", "cloudpickle", "sklearn", "torch.distributed.elastic")
EVENTS = ("_thread.start_new_thread", "socket.", "subprocess.Popen", "os.fork", "os.posix_spawn", "os.putenv")

seen: list[str] = []


def note_event(event: str, _arguments: tuple[Any, ...]) -> None:
    if is_watching and event.startswith(EVENTS):
        seen.append(event)


def global_state() -> dict[str, Any]:
    """What a program may rely on that nobody changes behind its back."""
    import logging
    import os
    import random
    import signal
    import warnings

    import numpy
    import torch

    loggers = [logging.getLogger(), *(logging.getLogger(name) for name in ("drivetrain", "torch"))]
    return {
        "environment": dict(os.environ),
        "directory": os.getcwd(),
        "warning filters": [repr(entry) for entry in warnings.filters],
        "python random state": hash(random.getstate()),
        "numpy random state": numpy.random.get_state()[1].tobytes().hex(),
        "torch random state": torch.get_rng_state().sum().item(),
        "torch dtype": str(torch.get_default_dtype()),
        "torch threads": [torch.get_num_threads(), torch.get_num_interop_threads()],
        "torch grad": torch.is_grad_enabled(),
        "torch deterministic": torch.are_deterministic_algorithms_enabled(),
        "logging": [[repr(handler) for handler in logger.handlers] + [str(logger.level)] for logger in loggers],
        "signals": [repr(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)],
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "hooks": [repr(sys.excepthook), repr(threading.excepthook), repr(sys.stdout), repr(sys.stderr)],
    }


def use_public_names(package: Any) -> list[str]:
    """Use every public name; those whose module is missing are returned."""
    missing = []
    for name in package.__all__:
        try:
            getattr(package, name)
        except ModuleNotFoundError as error:
            if not str(error.name).startswith("drivetrain."):
                raise
            missing.append(name)
    return missing


is_watching = False
sys.addaudithook(note_event)
before = global_state()
modules_before = set(sys.modules)

is_watching = True
import drivetrain  # noqa: E402

missing = use_public_names(drivetrain) if sys.argv[1] == "names" else []
is_watching = False

after = global_state()
heavy = [name for name in HEAVY if name in sys.modules and name not in modules_before]
changed = {key: [before[key], after[key]] for key in before if before[key] != after[key]}
print(json.dumps({"changed": changed, "events": seen, "heavy": heavy, "missing": missing}))
