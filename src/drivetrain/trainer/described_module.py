"""What loggers are told of a module before it is trained."""

from __future__ import annotations

from collections.abc import Sequence

from drivetrain.loggers.logger import Logger
from drivetrain.loop.module import Module


def describe_module(loggers: Sequence[Logger], module: Module) -> None:
    """Give hyperparameters and graph to the loggers."""
    hparams = module.hparams if module.__dict__.get("_logs_hparams", True) else None
    for logger in loggers:
        if hparams:
            logger.log_hyperparams(hparams)
        logger.log_graph(module)
