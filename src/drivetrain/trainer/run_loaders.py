"""The loaders of a run in one rank: asked for when they are needed, each once."""

from __future__ import annotations

import functools
from typing import Any

from drivetrain.base.errors import ConfigError
from drivetrain.data.loader import Loader
from drivetrain.fabric.fabric import Fabric
from drivetrain.loop.batch_transfer import bind_transfer
from drivetrain.loop.module import Module
from drivetrain.loop.step_timing import StepTiming
from drivetrain.trainer.given_loaders import evaluated, trained_on
from drivetrain.trainer.request import Request
from drivetrain.trainer.view import TrainerView

LOADER_NAMES = {"fit": "train", "validate": "val", "test": "test", "predict": "predict"}


class RunLoaders:
    """Who gives a run its data, and what it makes of that.

    From `await_loaders` on, whoever reads `train_loader` or `loaders` first has them made: a user's code in
    `configure_optimizers` or `on_fit_start`, a checkpoint that is loaded, or `make_loaders`.

    Args:
        fabric: Open in this rank.
        trainer: The user's.
        request: What to do.
        timing: Knows how long batches take to the device.
    """

    def __init__(self, fabric: Fabric, trainer: TrainerView, request: Request, timing: StepTiming) -> None:
        self.fabric, self.trainer, self.request, self.timing = fabric, trainer, request, timing
        self.module, self.datamodule = request.module, request.datamodule
        self._train_loader: Loader | None = None
        self._loaders: list[Loader] = []
        self._awaited: set[str] = set()

    @property
    def train_loader(self) -> Loader | None:
        """That of training, in a fit. Ranks: all, if it is not made yet."""
        if "train" in self._awaited:
            self._awaited.remove("train")  # first: a user's method may ask for it, too
            given = self._require_given(self.request.loaders)
            sizes = self.trainer.global_batch_size, self.trainer.given_micro_batch_size
            self._train_loader = self.training_loader(trained_on(given), *sizes)
        return self._train_loader

    @train_loader.setter
    def train_loader(self, loader: Loader | None) -> None:
        self._train_loader = loader

    @property
    def loaders(self) -> list[Loader]:
        """Those of evaluation. Ranks: all, if they are not made yet."""
        if "evaluation" in self._awaited:
            self._awaited.remove("evaluation")
            given = self._given_to_fit() if self.request.stage == "fit" else self._require_given(self.request.loaders)
            self._loaders = [self.evaluation_loader(one, index) for index, one in enumerate(evaluated(given))]
        return self._loaders

    @loaders.setter
    def loaders(self, loaders: list[Loader]) -> None:
        self._loaders = loaders

    def await_loaders(self) -> None:
        """From here on they can be made."""
        self._awaited = {"train", "evaluation"} if self.request.stage == "fit" else {"evaluation"}

    def is_awaiting(self, kind: str) -> bool:
        """Nobody has asked yet for those of training (`"train"`), or of evaluation (`"evaluation"`)."""
        return kind in self._awaited

    def make_loaders(self) -> None:
        """Make those that nobody has asked for yet.

        Ranks: all.

        Raises:
            ConfigError: There is none for the stage.
        """
        made = (self.train_loader, self.loaders)
        assert not self._awaited, f"{self._awaited} are not among {made}"

    def close_loaders(self) -> None:
        """End the workers of those that were made. Ranks: any."""
        for loader in (*self._loaders, self._train_loader):
            if loader is not None:
                loader.close()

    def given_loaders(self, name: str, passed: Any) -> Any:
        """Loaders that were passed, or else those of the data module or module."""
        if passed is not None:
            return passed
        for owner in (self.datamodule, self.module):
            made = getattr(owner, name)() if owner is not None else None
            if made is not None:
                return made
        return None

    def _given_to_fit(self) -> Any:
        has_step = type(self.module).validation_step is not Module.validation_step
        is_used = has_step and self.trainer.limit_val_batches != 0
        return self.given_loaders("val_dataloader", self.request.val_loaders) if is_used else None

    def _require_given(self, passed: Any) -> Any:
        stage = self.request.stage
        name = f"{LOADER_NAMES[stage]}_dataloader"
        given = self.given_loaders(name, passed)
        if given is None or (isinstance(given, (list, tuple)) and not given):
            raise ConfigError(
                f"{stage} was given no loader.",
                code="no-loader",
                do=f"Pass one, or define {name} on the module or datamodule.",
            )
        return given

    def training_loader(self, source: Any, global_batch_size: int | None, micro_batch_size: Any) -> Loader:
        """The loader of training, whose batches are cut from a global one if its size is given. Ranks: all."""
        trainer = self.trainer
        loader = self._loader(
            source, training=True, uneven=trainer.uneven, global_batch_size=global_batch_size,
            micro_batch_size=micro_batch_size, drops_last=trainer.remainder == "drop",
        )  # fmt: skip
        if loader.plan is not None:
            trainer.accumulate_grad_batches = loader.plan.num_rounds
        loader.wrap_move(functools.partial(self.timing.in_window, "transfer"))
        return loader

    def evaluation_loader(self, source: Any, index: int) -> Loader:
        """One of the loaders of an evaluation. Ranks: all."""
        return self._loader(source, index, training=False)

    def _loader(self, source: Any, index: int = 0, **options: Any) -> Loader:
        loader: Loader = self.fabric.setup_dataloaders(
            source, use_distributed_sampler=self.trainer.use_distributed_sampler, convert_input=True, **options
        )
        running, owners = self.fabric.strategy.running, [self.datamodule, self.module]
        loader.holds_epoch = bool(self.trainer.overfit_batches)
        bind_transfer(owners, loader, running.device, running.precision.convert_input, index)
        return loader
