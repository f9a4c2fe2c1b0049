"""Weights that are cut off while a model is trained."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from drivetrain.base.errors import ConfigError
from drivetrain.loop.callback import Callback

_log = logging.getLogger("drivetrain.callbacks")
_FUNCTIONS: dict[str, str] = {
    "l1_unstructured": "L1Unstructured", "random_unstructured": "RandomUnstructured",
    "ln_structured": "LnStructured", "random_structured": "RandomStructured",
}  # fmt: skip

Amount = int | float | Callable[[int], int | float | None]


class ModelPruning(Callback):
    """Prunes parameters by `torch.nn.utils.prune`, at the end of each epoch.

    Masks are those of rank 0 on all ranks. A checkpoint's model has the pruned weights under their own names, so that
    it loads without this callback; the weights behind the masks, and the masks, are in the callback's state, so that a
    run that goes on is the uninterrupted one.

    Args:
        pruning_fn: `"l1_unstructured"`, `"random_unstructured"`, `"ln_structured"`, `"random_structured"`, or a class
            derived from `torch.nn.utils.prune.BasePruningMethod`.
        parameters_to_prune: Pairs of a module and the name of its parameter; by default all that fit
            `parameter_names`.
        parameter_names: Names of parameters within their modules; by default `"weight"` and `"bias"`.
        use_global_unstructured: Compare the weights of all parameters with each other, instead of within each.
        amount: What is cut at each call: a part of what is left (`float`), a number (`int`), or a function of the epoch
            that gives either, or `None` for none.
        apply_pruning: Whether to prune after an epoch, or a function of the epoch.
        make_pruning_permanent: When training has ended the masks are dropped, and the zeros stay.
        use_lottery_ticket_hypothesis: After each cut begin again from the weights that training began with, or a
            function of the epoch.
        pruning_dim: Of structured pruning: the dimension of which parts are cut.
        pruning_norm: Of `"ln_structured"`: the norm that parts are compared by.
        verbose: 1 says how much is cut, 2 also of each parameter.
        prune_on_train_epoch_end: Prune after an epoch of training; if False, after validation.

    Raises:
        ConfigError: Arguments do not fit together.
    """

    def __init__(
        self,
        pruning_fn: str | type[prune.BasePruningMethod],
        parameters_to_prune: Sequence[tuple[nn.Module, str]] = (),
        parameter_names: Sequence[str] | None = None,
        use_global_unstructured: bool = True,
        amount: Amount = 0.5,
        apply_pruning: bool | Callable[[int], bool] = True,
        make_pruning_permanent: bool = True,
        use_lottery_ticket_hypothesis: bool | Callable[[int], bool] = True,
        pruning_dim: int | None = None,
        pruning_norm: int | float | None = None,
        verbose: int = 0,
        prune_on_train_epoch_end: bool = True,
    ) -> None:
        self._options: dict[str, Any] = {}
        if isinstance(pruning_fn, str):
            self._method: Any = getattr(prune, _FUNCTIONS.get(pruning_fn, ""), None)
            if pruning_fn.endswith("_structured") and not pruning_fn.endswith("unstructured"):
                self._options["dim"] = pruning_dim
            if pruning_fn == "ln_structured":
                self._options["n"] = pruning_norm
        else:
            self._method = pruning_fn
        self._check(pruning_fn, use_global_unstructured)
        self.parameters_to_prune = list(parameters_to_prune)
        self.parameter_names = tuple(parameter_names) if parameter_names is not None else ("weight", "bias")
        self.use_global_unstructured = use_global_unstructured
        self.amount, self.apply_pruning = amount, apply_pruning
        self.make_pruning_permanent = make_pruning_permanent
        self.use_lottery_ticket_hypothesis = use_lottery_ticket_hypothesis
        self.verbose = verbose
        self.prune_on_train_epoch_end = prune_on_train_epoch_end
        self._begun_with: dict[str, Tensor] = {}
        self._state: dict[str, Any] = {}  # of a checkpoint, until the module is there, and while one is written

    def _check(self, pruning_fn: Any, is_global: bool) -> None:
        kind = getattr(self._method, "PRUNING_TYPE", None)
        if not (isinstance(self._method, type) and issubclass(self._method, prune.BasePruningMethod)):
            wrong = f"pruning_fn={pruning_fn!r} is not known."
            do = f"Use one of {', '.join(_FUNCTIONS)}, or a class derived from BasePruningMethod."
        elif None in self._options.values():
            wrong, do = (
                f"pruning_fn={pruning_fn!r} was given without {' or '.join(self._options)}.",
                ("Give pruning_dim, and with 'ln_structured' pruning_norm."),
            )
        elif is_global and kind != "unstructured":
            wrong = f"pruning_fn={pruning_fn!r} cuts parts of one parameter, which cannot be compared with others'."
            do = "Use use_global_unstructured=False."
        else:
            return
        raise ConfigError(wrong, code="pruning", do=do)

    # ---------------------------------------------------------------- when

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Find the parameters; go on with the masks of a checkpoint.

        Raises:
            ConfigError: There are none, or they are in shards.
        """
        targets = self._targets(pl_module)
        if not targets:
            raise ConfigError(
                "ModelPruning found no parameter to prune.", code="pruning", do="Name them in parameters_to_prune."
            )
        if any(hasattr(getattr(one, name), "placements") for one, name in targets.values()):
            raise ConfigError(
                "ModelPruning compares whole parameters, and this strategy keeps them in shards.",
                code="pruning",
                do="Use strategy='ddp'.",
            )
        if self._state and trainer.run.resumed_from:
            self._take_loaded(targets)
        elif self._is_ticket(0) or callable(self.use_lottery_ticket_hypothesis):
            self._begun_with = {key: getattr(one, name).detach().clone() for key, (one, name) in targets.items()}

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Prune.

        Ranks: all (one broadcast of each mask).
        """
        if self.prune_on_train_epoch_end:
            self._prune(trainer, pl_module)

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Prune.

        Ranks: all (one broadcast of each mask).
        """
        if not self.prune_on_train_epoch_end and not trainer.sanity_checking and trainer.state.fn == "fit":
            self._prune(trainer, pl_module)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Drop the masks: the zeros stay."""
        if self.make_pruning_permanent:
            for one, name in self._pruned(pl_module).values():
                prune.remove(one, name)

    def _is_ticket(self, epoch: int) -> bool:
        wants = self.use_lottery_ticket_hypothesis
        return wants(epoch) if callable(wants) else wants

    # ---------------------------------------------------------------- how

    def _prune(self, trainer: Any, module: nn.Module) -> None:
        epoch = trainer.current_epoch
        amount = self.amount(epoch) if callable(self.amount) else self.amount
        applies = self.apply_pruning(epoch) if callable(self.apply_pruning) else self.apply_pruning
        if not applies or not amount:
            return
        targets = self._targets(module)
        with torch.no_grad():
            self._refresh(module)
            if self.use_global_unstructured:
                prune.global_unstructured(list(targets.values()), self._method, amount=amount, **self._options)
            else:
                for one, name in targets.values():
                    if not self._options or getattr(one, name).dim() > 1:  # a bias has no parts
                        self._method.apply(one, name, amount=amount, **self._options)
            for key, (one, name) in self._pruned(module).items():
                mask = getattr(one, f"{name}_mask")
                if trainer.world_size > 1:
                    mask.copy_(trainer.collectives.broadcast(mask.cpu()))
                if self._is_ticket(epoch) and key in self._begun_with:
                    getattr(one, f"{name}_orig").copy_(self._begun_with[key])
            self._refresh(module)
        if self.verbose and trainer.is_global_zero:
            self._say(module)

    def _refresh(self, module: nn.Module) -> None:
        """Bring masked weights to what they are since the last forward: torch compares, and keeps, what was then."""
        for one, name in self._pruned(module).values():
            setattr(one, name, getattr(one, f"{name}_orig") * getattr(one, f"{name}_mask"))

    def _say(self, module: nn.Module) -> None:
        masks = {key: getattr(one, f"{name}_mask") for key, (one, name) in self._pruned(module).items()}
        cut = {key: int((mask == 0).sum()) for key, mask in masks.items()}
        total = sum(mask.numel() for mask in masks.values())
        _log.info("Pruned %d of %d weights (%.1f %%).", sum(cut.values()), total, 100 * sum(cut.values()) / total)
        for key in masks if self.verbose > 1 else ():
            _log.info("    %s: %d of %d", key, cut[key], masks[key].numel())

    def _targets(self, module: nn.Module) -> dict[str, tuple[nn.Module, str]]:
        """What is pruned, by its full name; a parameter in two modules once."""
        names = {id(one): key for key, one in module.named_modules()}
        pairs = self.parameters_to_prune or [
            (one, name) for one in module.modules() for name in self.parameter_names if _is_parameter(one, name)
        ]
        targets = {f"{names[id(one)]}.{name}".lstrip("."): (one, name) for one, name in pairs if id(one) in names}
        return targets

    def _pruned(self, module: nn.Module) -> dict[str, tuple[nn.Module, str]]:
        return {key: (one, name) for key, (one, name) in self._targets(module).items() if hasattr(one, f"{name}_mask")}

    # ---------------------------------------------------------------- state

    @contextmanager
    def saving(self, trainer: Any, pl_module: Any) -> Iterator[None]:
        """A checkpoint's model is the pruned one, under the names of its parameters; masks are in the state."""
        pruned = self._pruned(pl_module)
        originals = {key: getattr(one, f"{name}_orig").detach().clone() for key, (one, name) in pruned.items()}
        masks = {key: getattr(one, f"{name}_mask").detach().clone() for key, (one, name) in pruned.items()}
        self._state = {"originals": originals, "masks": masks, "begun_with": self._begun_with} if masks else {}
        for one, name in pruned.values():
            prune.remove(one, name)
        try:
            yield
        finally:
            self._put_back(pruned, self._state)
            self._state = {}

    def state_dict(self) -> dict[str, Any]:
        """Masks, and the weights behind them."""
        return {**self._state}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep them for the module of the run."""
        self._state = dict(state_dict)

    def _take_loaded(self, targets: dict[str, tuple[nn.Module, str]]) -> None:
        state, self._state = self._state, {}
        self._put_back({key: targets[key] for key in state["masks"]}, state)
        self._begun_with = {key: one.clone() for key, one in state["begun_with"].items()}

    def _put_back(self, pruned: dict[str, tuple[nn.Module, str]], state: dict[str, Any]) -> None:
        with torch.no_grad():
            for key, (one, name) in pruned.items():
                parameter = getattr(one, name)
                parameter.copy_(state["originals"][key])
                prune.custom_from_mask(one, name, state["masks"][key].to(parameter.device))


def _is_parameter(module: nn.Module, name: str) -> bool:
    return isinstance(module._parameters.get(name), nn.Parameter) or hasattr(module, f"{name}_mask")
