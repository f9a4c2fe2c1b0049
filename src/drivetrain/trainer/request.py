"""What a user asks of a trainer: a stage, a module, its data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from drivetrain.base.errors import ConfigError
from drivetrain.loop.hooks import check_module
from drivetrain.loop.module import Module
from drivetrain.loop.step_arguments import num_step_arguments

_STEPS = {"fit": "training_step", "validate": "validation_step", "test": "test_step", "predict": "predict_step"}


@dataclass(frozen=True)
class Request:
    """What the user asked for.

    Attributes:
        stage: `"fit"`, `"validate"`, `"test"` or `"predict"`.
        module: The user's.
        loaders: Of the stage, as they were given.
        val_loaders: Of `fit`.
        datamodule: Instead of loaders.
        ckpt_path: A checkpoint to start from, a folder of such, or a `CheckpointSearch`.
        is_elsewhere: The run is launched in other processes, which bring its results back.
        keeps_predictions: `predict` returns them.
    """

    stage: str
    module: Module
    loaders: Any = None
    val_loaders: Any = None
    datamodule: Any = None
    ckpt_path: Any = None
    is_elsewhere: bool = False
    keeps_predictions: bool = True

    def check(self) -> None:
        """Refuse what cannot run.

        Raises:
            HookError: The module is none, or misspells a hook.
            ConfigError: A step is missing or cannot be called, or data were given twice.
        """
        check_module(self.module)
        step = _STEPS[self.stage]
        kind = type(self.module)
        is_given = getattr(kind, step) is not getattr(Module, step) or step in vars(self.module)
        if not is_given and step != "predict_step":
            raise ConfigError(
                f"{kind.__name__} has no {step}.", code="no-step", do=f"Define {step}(self, batch, batch_idx)."
            )
        for one in (step, "validation_step") if self.stage == "fit" else (step,):
            num_step_arguments(self.module, one, 2)
        if self.datamodule is not None and (self.loaders is not None or self.val_loaders is not None):
            raise ConfigError(
                f"{self.stage} got loaders and a datamodule.", code="data-twice", do="Give one of the two."
            )
