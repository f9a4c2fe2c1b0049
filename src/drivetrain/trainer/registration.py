"""The best checkpoint of a training, as a version of a model in the registry of a logger."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from typing import Any

from drivetrain.base.errors import ConfigError, DrivetrainError, LoggingError
from drivetrain.checkpoint.manifest import MANIFEST_NAME
from drivetrain.checkpoint.remote import downloaded
from drivetrain.checkpoint.verify import require_valid
from drivetrain.loggers.logger import Logger


def check_registration(model_name: Any, loggers: Sequence[Logger], *, has_checkpoints: bool) -> str | None:
    """The name under which a model is to be registered; `None` if it is not to be.

    Raises:
        ConfigError: It cannot be: it is no name, nothing is saved, or no logger has a registry.
    """
    if model_name is None:
        return None
    if not isinstance(model_name, str) or not model_name.strip():
        raise ConfigError(
            f"model_registry={model_name!r} is no name of a model.", code="model-registry", do='Use text: "digits".'
        )
    if not has_checkpoints:
        raise ConfigError(
            f"model_registry={model_name!r}, but no checkpoint is kept that could be registered.",
            code="model-registry",
            do="Drop enable_checkpointing=False, or model_registry.",
        )
    if not [logger for logger in loggers if logger.has_registry(model_name)]:
        kinds = ", ".join(type(logger).__name__ for logger in loggers) or "there is no logger"
        raise ConfigError(
            f"model_registry={model_name!r}, but no logger has a registry of models: {kinds}.",
            code="model-registry",
            do="Use logger=MLFlowLogger(...), or a WandbLogger that is online; or drop model_registry, and register "
            "trainer.checkpoint_callback.best_model_path with a client of your own after fit.",
        )
    return model_name


def register_best(trainer: Any) -> None:
    """Register what `ckpt_path="best"` stands for, after a training that came to its end and was not told to.

    Ranks: any; rank 0 does it alone, as it keeps artifacts.

    Raises:
        CheckpointError: The checkpoint is not whole.
        LoggingError: The registry does not take it.
    """
    name = trainer.model_registry
    if name is None or not trainer.is_global_zero or trainer.was_preempted or trainer.fast_dev_run:
        return
    path = trainer.checkpoint_callback.best_model_path
    if not path:
        warnings.warn(f"Nothing is registered as {name!r}: no checkpoint was kept.", stacklevel=2)
        return
    with downloaded(path) as directory:
        require_valid(directory)
        digest = hashlib.sha256((directory / MANIFEST_NAME).read_bytes()).hexdigest()
        for logger in trainer.loggers:
            if logger.has_registry(name):
                _register(logger, name, path, directory, digest)


def _register(logger: Logger, name: str, path: str, directory: Any, digest: str) -> None:
    try:
        logger.register_model(name, path, directory=directory, digest=digest)
    except DrivetrainError:
        raise
    except Exception as cause:
        raise LoggingError(
            f"{type(logger).__name__} could not register {path} as {name!r}: {type(cause).__name__}: {cause}",
            code="model-registry",
            do="The training is over, and its checkpoints are there. fit with resume='auto' tries again.",
        ) from cause
