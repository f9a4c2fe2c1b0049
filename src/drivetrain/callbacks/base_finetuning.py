"""Parts of a module that are frozen at first, and trained later."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from drivetrain.base.errors import ConfigError
from drivetrain.loop.callback import Callback

Parts = nn.Module | Iterable[nn.Module]


class BaseFinetuning(Callback):
    """Freezes parts of the module before training, and unfreezes them at the beginning of later epochs.

    Override `freeze_before_training` and `finetune_function`. Parameters are frozen before the optimizers are made, so
    `configure_optimizers` may leave them out; `unfreeze_and_add_param_group` gives them to one. What was frozen and
    the groups that were added are in a checkpoint, and are there again before the optimizer's state is loaded.

    Where gradients are synced by a wrapper that was made while parameters were frozen, the module is wrapped anew after
    they were unfrozen, so that theirs are synced, too. Batch norms that are frozen with `train_bn=False` are in eval
    mode: their statistics stay.
    """

    def __init__(self) -> None:
        self._added: list[dict[str, Any]] = []  # of groups: optimizer, names of parameters
        self._frozen_norms: list[nn.Module] = []
        self._frozen: list[str] = []
        self._epoch = -1  # for which was unfrozen last: an epoch that goes on after a resume does not begin again

    def freeze_before_training(self, pl_module: Any) -> None:
        """Freeze what is not trained at first, with `freeze`. Called in `setup`, before optimizers are made."""
        raise NotImplementedError

    def finetune_function(self, pl_module: Any, epoch: int, optimizer: Optimizer) -> None:
        """Unfreeze what is due, with `unfreeze_and_add_param_group`. Called for each optimizer before each epoch."""
        raise NotImplementedError

    # ---------------------------------------------------------------- freezing

    def freeze(self, modules: Parts, train_bn: bool = True) -> None:
        """Train parameters no longer; batch norms stay as they are with `train_bn`."""
        for module in leaves_of(modules):
            is_norm = isinstance(module, _BatchNorm)
            if is_norm and train_bn:
                continue
            for parameter in module.parameters(recurse=False):
                parameter.requires_grad_(False)
            if is_norm:
                self._frozen_norms.append(module)

    def unfreeze(self, modules: Parts) -> None:
        """Train all parameters."""
        for module in leaves_of(modules):
            for parameter in module.parameters(recurse=False):
                parameter.requires_grad_(True)
            if any(module is one for one in self._frozen_norms):
                self._frozen_norms = [one for one in self._frozen_norms if one is not module]
                module.train()

    def unfreeze_and_add_param_group(
        self, modules: Parts, optimizer: Optimizer, lr: float | None = None, initial_denom_lr: float = 10.0,
        train_bn: bool = True,
    ) -> None:  # fmt: skip
        """Train the parameters of these parts, in a group of their own; those that the optimizer has stay there.

        Args:
            modules: One or several.
            optimizer: That gets them.
            lr: Of the group; by default that of the first group over `initial_denom_lr`.
            initial_denom_lr: See `lr`.
            train_bn: Train batch norms, too.
        """
        parts = leaves_of(modules)
        self.unfreeze(one for one in parts if train_bn or not isinstance(one, _BatchNorm))
        parameters = [one for part in parts for one in part.parameters(recurse=False) if one.requires_grad]
        rate = lr if lr is not None else optimizer.param_groups[0]["lr"] / initial_denom_lr
        add_group(optimizer, parameters, rate)

    # ---------------------------------------------------------------- hooks

    def state_dict(self) -> dict[str, Any]:
        """What was frozen, and the groups that were added. All ranks."""
        return {"added": self._added, "frozen": self._frozen, "epoch": self._epoch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore them. All ranks."""
        self._added, self._frozen = list(state_dict["added"]), list(state_dict["frozen"])
        self._epoch = state_dict["epoch"]

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Freeze."""
        if stage == "fit":
            self._added, self._frozen_norms, self._epoch = [], [], -1
            self.freeze_before_training(pl_module)

    def on_before_load(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Bring module and optimizers to what was saved, so that their state fits."""
        saved = checkpoint["callbacks"].get(self.state_key)
        if saved is None:
            return
        named, frozen = dict(pl_module.named_parameters()), set(saved["frozen"])
        for name, parameter in named.items():
            parameter.requires_grad_(name not in frozen)
        for group in saved["added"]:
            optimizer = trainer.optimizers[group["optimizer"]]
            add_group(optimizer, [named[name] for name in group["names"]], optimizer.param_groups[0]["lr"])
            extend_schedulers(trainer, optimizer)

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Keep the statistics of frozen batch norms."""
        self._frozen_norms = [
            one for one in self._frozen_norms if not any(p.requires_grad for p in one.parameters(recurse=False))
        ]
        for one in self._frozen_norms:
            one.eval()
        self._note(pl_module)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Unfreeze what is due, and let its gradients be synced.

        Ranks: all.
        """
        if trainer.current_epoch != self._epoch:
            self._epoch = trainer.current_epoch
            self._unfreeze_due(trainer, pl_module)
        self._note(pl_module)
        trainer.run.renew_wrapper()

    def _unfreeze_due(self, trainer: Any, pl_module: Any) -> None:
        for number, optimizer in enumerate(trainer.optimizers):
            before = len(optimizer.param_groups)
            self.finetune_function(pl_module, trainer.current_epoch, optimizer)
            names = {id(one): name for name, one in pl_module.named_parameters()}
            for group in optimizer.param_groups[before:]:
                self._added.append({"optimizer": number, "names": [names[id(one)] for one in group["params"]]})
                extend_schedulers(trainer, optimizer)

    def _note(self, module: nn.Module) -> None:
        self._frozen = [name for name, one in module.named_parameters() if not one.requires_grad]


def leaves_of(modules: Parts) -> list[nn.Module]:
    """All modules that hold parameters of their own, each once."""
    given = [modules] if isinstance(modules, nn.Module) else list(modules)
    found: Iterator[nn.Module] = (part for one in given for part in one.modules())
    return list({id(one): one for one in found if any(True for _ in one.parameters(recurse=False))}.values())


def add_group(optimizer: Optimizer, parameters: Iterable[nn.Parameter], rate: float) -> None:
    """Give an optimizer those parameters that it does not have, in a group of their own.

    Raises:
        ConfigError: `rate` is not above 0.
    """
    if rate <= 0:
        raise ConfigError(f"A parameter group was given lr={rate}.", code="finetuning", do="Use a rate above 0.")
    known = {id(one) for group in optimizer.param_groups for one in group["params"]}
    new = [one for one in parameters if id(one) not in known]
    if new:
        # What schedulers keep in groups (`max_lr`, ...) is that of the first.
        rest = {key: value for key, value in optimizer.param_groups[0].items() if key not in ("params", "name")}
        optimizer.add_param_group({**rest, "params": new, "lr": rate, "initial_lr": rate})


def extend_schedulers(trainer: Any, optimizer: Optimizer) -> None:
    """Let an optimizer's schedulers know of its last group: they keep lists with an entry for each."""
    group = optimizer.param_groups[-1]
    for scheduler in (config.scheduler for config in trainer.lr_scheduler_configs):
        if getattr(scheduler, "optimizer", None) is not optimizer:
            continue
        for one in (scheduler, *getattr(scheduler, "_schedulers", ())):
            for name, value in (("base_lrs", group["initial_lr"]), ("min_lrs", None), ("lr_lambdas", None)):
                kept = getattr(one, name, None)
                if isinstance(kept, list) and len(kept) < len(optimizer.param_groups):
                    kept.append(kept[-1] if value is None else value)
