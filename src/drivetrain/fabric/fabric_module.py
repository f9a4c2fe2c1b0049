"""What `Fabric.setup` gives back: the user's module, called through the strategy."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from drivetrain.base.errors import MethodNotPreparedError
from drivetrain.base.tree import tensors_of
from drivetrain.strategies.prepared import Prepared
from drivetrain.strategies.router import Router
from drivetrain.strategies.strategy import Strategy

_OWN = frozenset({"_fabric_prepared", "_fabric_strategy", "_fabric_precision", "training"})


class KnowsFabric:
    """A module that `Fabric.setup` tells of the fabric, until that is closed."""

    _fabric: Any = None


class FabricModule(nn.Module):
    """The user's module, with calls that go through the strategy's wrapper.

    Calling it runs `forward`; the other prepared methods can be called by name. Parameters, buffers, submodules and
    `state_dict` are the user's module's own, under their own names. Reading or setting any other attribute reaches the
    user's module. A method that was not prepared may be called as long as nothing that it returns needs gradients.

    Attributes:
        original: The user's module.
        prepared: Both ends of the wrapping.
    """

    def __init__(self, prepared: Prepared, strategy: Strategy) -> None:
        super().__init__()
        self.__dict__.update(_fabric_prepared=prepared, _fabric_strategy=strategy)
        # The same dicts, not copies: every walk over parameters and submodules sees the user's module itself.
        original = prepared.original
        self.__dict__.update(
            _parameters=original._parameters, _buffers=original._buffers, _modules=original._modules,
            _non_persistent_buffers_set=original._non_persistent_buffers_set,
        )  # fmt: skip
        self.__dict__["training"] = original.training
        precision = strategy.running.precision
        self.__dict__["_fabric_precision"] = None if precision.changes_nothing else precision

    @property
    def original(self) -> nn.Module:
        """The user's module."""
        return self.prepared.original

    @property
    def prepared(self) -> Prepared:
        """Both ends of the wrapping."""
        prepared: Prepared = self.__dict__["_fabric_prepared"]
        return prepared

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the user's forward through the wrapper.

        Ranks: all while gradients are on.
        """
        return self._fabric_call("forward", *args, **kwargs)

    def _fabric_call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        own = self.__dict__
        precision = own["_fabric_precision"]
        if precision is None:
            return own["_fabric_strategy"].call(own["_fabric_prepared"], method, *args, **kwargs)
        args, kwargs = precision.convert_input(args), precision.convert_input(kwargs)
        output = own["_fabric_strategy"].call(own["_fabric_prepared"], method, *args, **kwargs)
        return precision.convert_output(output)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The user's module's state, without any prefix."""
        return self.original.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load into the user's module."""
        return self.original.load_state_dict(*args, **kwargs)

    def train(self, mode: bool = True) -> FabricModule:
        """Set the mode of the user's module."""
        self.original.train(mode)
        self.__dict__["training"] = mode
        return self

    def __getattr__(self, name: str) -> Any:
        if "_fabric_prepared" not in self.__dict__:  # while it is copied
            raise AttributeError(name)
        prepared: Prepared = self.__dict__["_fabric_prepared"]
        value = getattr(prepared.original, name)
        if name in prepared.methods:
            return functools.partial(self._fabric_call, name)
        is_method = callable(value) and getattr(value, "__self__", None) is prepared.original
        if is_method and not hasattr(nn.Module, name):
            strategy: Strategy = self.__dict__["_fabric_strategy"]
            return _checked(value, name, type(prepared.original).__name__, is_sharded=strategy.traits.shards_state)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN:
            self.__dict__[name] = value
        else:
            setattr(self.original, name, value)


def drop_wrapper(module: FabricModule) -> None:
    """Forget the wrapper, so that it can be freed before its process group is; calls run on the user's module then."""
    prepared = module.prepared
    if isinstance(prepared.original, KnowsFabric):
        prepared.original._fabric = None
    module.__dict__["_fabric_prepared"] = dataclasses.replace(prepared, wrapped=Router(prepared.original), kept=None)
    # Windows and loops that are still around hold the other one: it must not keep the wrapper, nor that its group.
    object.__setattr__(prepared, "wrapped", module.prepared.wrapped)


def _checked(method: Callable[..., Any], name: str, kind: str, *, is_sharded: bool) -> Callable[..., Any]:
    what = f"{name!r} was not named when {kind} was set up, so"

    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            result = method(*args, **kwargs)
        except Exception as error:
            if is_sharded:
                note = f'{what} it saw shards of the parameters. Set it up with methods=("forward", "{name}").'
                error.add_note(note)
            raise
        if torch.is_grad_enabled() and any(t.requires_grad and t.grad_fn is not None for t in tensors_of(result)):
            raise MethodNotPreparedError(
                f"{what} its gradients would not be synced.",
                code="method",
                do=f'Set it up with methods=("forward", "{name}"), or call model.original.{name}() if no gradients are '
                "needed.",
            )
        return result

    return run
