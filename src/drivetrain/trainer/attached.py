"""What a module and loggers know of a run while it lasts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def attached(run: Any) -> Iterator[None]:
    """The module knows its trainer for the duration of the run; callbacks hear of an exception; loggers are ended.

    Ranks: any.
    """
    trainer, module = run.trainer, run.module
    found = module._trainer, module._metrics
    module._trainer, module._metrics = trainer, trainer.metrics
    status = "failed"
    try:
        yield
        status = "interrupted" if trainer.was_preempted else "success"
    except BaseException as error:
        status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        if not run.request.is_inner:
            run.fabric.saves.end()
        for hook in run.hooks.on_exception:
            hook(error)
        if run.datamodule is not None and not run.request.is_inner:
            run.datamodule.on_exception(error)
        raise
    finally:
        for logger in trainer.loggers:
            logger.finalize(status)
        run.take_down()
        module._trainer, module._metrics = found
        module._ranks = (trainer.global_rank, trainer.local_rank)
