"""An optimizer whose step knows of the loss scaling, and of ranks that step apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from drivetrain.base.errors import OptimizerError
from drivetrain.fabric.fabric_module import FabricModule
from drivetrain.strategies.optimizer_names import parameters_of
from drivetrain.strategies.prepared import Prepared
from drivetrain.strategies.strategy import Strategy


class FabricOptimizer:
    """The user's optimizer, stepping through the strategy. Everything else reaches the user's own object.

    Attributes:
        optimizer: The user's own.

    Args:
        optimizer: The user's own.
        strategy: Steps it.
        ends: The modules whose optimizer step is over with this one's.
    """

    def __init__(self, optimizer: Optimizer, strategy: Strategy, ends: Sequence[Prepared] = ()) -> None:
        self.optimizer = optimizer
        self._strategy = strategy
        self._ends = ends
        self._is_unscaled = False

    def unscale(self) -> None:
        """Undo the loss scaling of the gradients; once, however often it is called before the step."""
        if not self._is_unscaled:
            self._strategy.unscale(self.optimizer)
            self._is_unscaled = True

    def step(self, closure: Any = None) -> bool:
        """Make the step; False if it was skipped because scaled gradients overflowed.

        Ranks: all, equally often.
        """
        self._is_unscaled = False
        has_stepped = self._strategy.step([self.optimizer], [closure])
        if self._ends:
            self._strategy.end_step(self._ends)
        return has_stepped

    def __getattr__(self, name: str) -> Any:
        if "optimizer" not in self.__dict__:  # while it is copied
            raise AttributeError(name)
        return getattr(self.optimizer, name)


def wrap_optimizers(
    optimizers: Sequence[Optimizer], strategy: Strategy, modules: Iterable[Prepared]
) -> tuple[Any, ...]:
    """The optimizers as `FabricOptimizer` where losses are scaled or ranks step apart, else as they are.

    A module's step is over with the last of the optimizers that holds its parameters.
    """
    if strategy.scaler is None and not strategy.traits.steps_apart:
        return tuple(optimizers)
    ends: list[list[Prepared]] = [[] for _ in optimizers]
    for module in modules:
        holding = [index for index, one in enumerate(optimizers) if modules_of([one], [module])]
        if holding:
            ends[holding[-1]].append(module)
    return tuple(FabricOptimizer(one, strategy, end) for one, end in zip(optimizers, ends, strict=True))


def modules_of(optimizers: Iterable[Optimizer], modules: Iterable[Prepared]) -> list[Prepared]:
    """Those of the modules of which the optimizers hold parameters."""
    held = {id(p) for one in optimizers for p in parameters_of(one)}
    return [module for module in modules if any(id(p) in held for p in module.parameters)]


def check_optimizer(optimizer: Any, module: nn.Module) -> None:
    """Refuse what is no optimizer, and one whose parameters are not the module's.

    Raises:
        OptimizerError: It is none, or holds others.
    """
    if not isinstance(optimizer, Optimizer):
        raise OptimizerError(
            f"{type(optimizer).__name__} is not a torch optimizer.",
            code="optimizer",
            do="Pass a torch.optim.Optimizer.",
        )
    check_parameters(
        optimizer,
        module,
        do="Make the optimizer from the parameters of the module that is set up, after the module is complete.",
    )


def check_parameters(optimizer: Optimizer, module: nn.Module, *, do: str) -> None:
    """Refuse an optimizer whose parameters are not the module's.

    Args:
        optimizer: The user's.
        module: Whose parameters it should hold.
        do: What to do about it, where the user made it.

    Raises:
        OptimizerError: It holds others.
    """
    own = {id(parameter) for parameter in module.parameters()}
    groups = [[id(parameter) for parameter in group["params"]] for group in optimizer.param_groups]
    strange = sum(one not in own for group in groups for one in group)
    if strange:
        raise OptimizerError(
            f"{type(optimizer).__name__} holds {strange} of {sum(map(len, groups))} parameters that are not "
            f"{type(module).__name__}'s: they would be stepped without gradients.",
            code="optimizer-parameters",
            do=do,
        )


def without_wrappers(state: Mapping[str, Any]) -> dict[str, Any]:
    """A state that names what `setup` has given back, as a strategy wants it."""
    return {name: _own(value) for name, value in state.items()}


def _own(value: Any) -> Any:
    if isinstance(value, FabricModule):
        return value.prepared
    return value.optimizer if isinstance(value, FabricOptimizer) else value
