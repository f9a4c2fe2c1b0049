"""What loggers are told of a module before it is trained."""

from __future__ import annotations

from drivetrain.loop.module import Module
from drivetrain.trainer.view import TrainerView


def describe_module(trainer: TrainerView, module: Module) -> None:
    """Give hyperparameters, unless that is switched off, and graph to the loggers."""
    is_logged = trainer.enable_autolog_hparams and module.__dict__.get("_logs_hparams", True)
    hparams = module.hparams if is_logged else None
    for logger in trainer.loggers:
        if hparams:
            logger.log_hyperparams(hparams)
        logger.log_graph(module)
