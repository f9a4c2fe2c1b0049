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
    loop.hooks.on_train_epoch_start = (Reloading(run), *loop.hooks.on_train_epoch_start)


class Reloading:
    """A hook of the beginning of an epoch. The first one has its loaders, unless a run goes on in a later epoch."""

    def __init__(self, run: Any) -> None:
        self.run = run
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
            reload_loaders(self.run)


def reload_loaders(run: Any) -> None:
    """Ask the module or data module for the loaders of a fit again, before training or between two epochs.

    Those that nobody has asked for yet are made later, anyway.

    Ranks: all.
    """
    if not run.is_awaiting("train"):
        _reload_training(run)
    if run.is_awaiting("evaluation") or not run.loaders or run.request.val_loaders is not None:
        return
    for one in run.loaders:
        one.close()
    given = evaluated(run.given_loaders("val_dataloader", None))
    run.loaders = [run.evaluation_loader(one, index) for index, one in enumerate(given)]


def _reload_training(run: Any) -> None:
    trainer, before, loop = run.trainer, run.train_loader, run.loop
    given = run.given_loaders("train_dataloader", None)
    loader = run.training_loader(trained_on(given), trainer.global_batch_size, trainer.given_micro_batch_size)
    loader.take_place_of(before)
    run.train_loader = loader
    if loop is not None:
        loop.loader = loader
        loop.limit_batches = resolve_limit("limit_train_batches", trainer.limit_train_batches, loader.num_rounds)
