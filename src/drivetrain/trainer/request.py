"""What a user asks of a trainer: a stage, a module, its data."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

from drivetrain.base.errors import ConfigError
from drivetrain.fabric.compiled import Compiler, is_compiled
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
        compiler: Compiles the module.
        is_inner: Inside of another run, for a copy of its module: data and module are set up already, and stay so.
    """

    stage: str
    module: Module
    loaders: Any = None
    val_loaders: Any = None
    datamodule: Any = None
    ckpt_path: Any = None
    is_elsewhere: bool = False
    keeps_predictions: bool = True
    compiler: Compiler | None = None
    is_inner: bool = False

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

    def __getstate__(self) -> dict[str, Any]:
        """What is sent to ranks: nothing that was compiled."""
        state = dict(self.__dict__)
        is_own = self.compiler is not None and self.compiler.context is not None
        if is_own or is_compiled(self.module):
            warnings.warn(
                f"{type(self.module).__name__} was compiled in this process, and is sent to other ones as it was "
                "before. Write Trainer(compile=True), or compile in configure_model.",
                stacklevel=2,
            )
        if is_own:
            state["compiler"] = None
        return state
