"""New loaders of the module or data module between epochs, where that was asked for."""

from __future__ import annotations

import warnings
from typing import Any

from drivetrain.trainer.arguments import resolve_limit
from drivetrain.trainer.given_loaders import evaluated, trained_on


def reload_between_epochs(run: Any, loop: Any) -> None:
    """Let a loop ask for new loaders at the beginning of every n-th epoch."""
    if run.request.loaders is not None:
        warnings.warn(
            "reload_dataloaders_every_n_epochs changes nothing: fit was given its loader. Define train_dataloader on "
            "the module or data module.",
            stacklevel=2,
        )
        return
    loop.hooks.on_train_epoch_start = (Reloading(run, loop), *loop.hooks.on_train_epoch_start)


class Reloading:
    """A hook of the beginning of an epoch. The first one has its loaders, unless a run goes on in a later epoch."""

    def __init__(self, run: Any, loop: Any) -> None:
        self.run, self.loop = run, loop
        self._is_first = True

    def __call__(self) -> None:
        """Ask, if it is due.

        Ranks: all.
        """
        trainer = self.run.trainer
        epoch, every = trainer.current_epoch, trainer.reload_dataloaders_every_n_epochs
        is_due = epoch > 0 and (self._is_first or epoch % every == 0)
        self._is_first = False
        if is_due:
            self._reload_training()
            self._reload_validation()

    def _reload_training(self) -> None:
        run, trainer, before = self.run, self.run.trainer, self.run.train_loader
        given = run.given_loaders("train_dataloader", None)
        loader = run.training_loader(trained_on(given), trainer.global_batch_size, trainer.given_micro_batch_size)
        loader.take_place_of(before)
        run.train_loader = self.loop.loader = loader
        self.loop.limit_batches = resolve_limit("limit_train_batches", trainer.limit_train_batches, loader.num_rounds)

    def _reload_validation(self) -> None:
        run = self.run
        if not run.loaders or run.request.val_loaders is not None:
            return
        for loader in run.loaders:
            loader.close()
        given = evaluated(run.given_loaders("val_dataloader", None))
        run.loaders = [run.evaluation_loader(one, index) for index, one in enumerate(given)]
