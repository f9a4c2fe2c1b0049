"""A wrapped module, what a strategy is like, and what exists only in a running rank."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from drivetrain.base.errors import MethodNotPreparedError
from drivetrain.cluster.cluster_info import ClusterInfo
from drivetrain.comm.collectives import Collectives
from drivetrain.precision.precision import Precision


@dataclass(frozen=True)
class Traits:
    """What others may want to know of a strategy, instead of asking for its class.

    Attributes:
        name: The name under which it can be asked for.
        is_distributed: Each device has a rank of its own; without it one rank drives all devices.
        syncs_gradients: Gradients are averaged over ranks, so that a window has a sync to defer.
        shards_state: No rank holds the whole state.
        communicates_in_forward: Ranks must run equally many micro-batches of a window, and batches of an evaluation;
            one that has none, or no loss, joins with `sync_idle` or `call_idle` in each.
        compiles: A module, or its parts, can be compiled in place.
    """

    name: str
    is_distributed: bool
    syncs_gradients: bool
    shards_state: bool
    communicates_in_forward: bool = False
    compiles: bool = True

    @property
    def steps_apart(self) -> bool:
        """Each rank steps on its own gradients; `Strategy.end_step` brings parameters together."""
        return self.is_distributed and not self.syncs_gradients


@dataclass(frozen=True)
class Running:
    """What exists only in a running rank; set once by `Strategy.open`.

    Attributes:
        cluster: This rank among the others.
        device: Where this rank computes.
        devices: All devices that this rank drives; more than one only for a strategy that is not distributed.
        precision: The number formats of the run.
        collectives: How this rank talks to the others.
    """

    cluster: ClusterInfo
    device: torch.device
    devices: tuple[torch.device, ...]
    precision: Precision
    collectives: Collectives


@dataclass(frozen=True, eq=False)
class Prepared:
    """A module that a strategy has wrapped. Both ends are kept; nothing is ever unwrapped.

    Attributes:
        original: The user's module: state is read from here.
        wrapped: What a step is called through.
        methods: The methods that may be called through it.
        parameters: Of the user's module.
        kept: What the strategy itself keeps beside them.
        frozen: Parameters that needed no gradient when it was wrapped; `None` where the wrapper does not mind.
    """

    original: nn.Module
    wrapped: nn.Module
    methods: frozenset[str]
    parameters: tuple[nn.Parameter, ...] = field(default=(), repr=False)
    kept: Any = field(default=None, repr=False)
    frozen: tuple[nn.Parameter, ...] | None = field(default=None, repr=False)

    @property
    def hooked(self) -> tuple[nn.Module, ...]:
        """Submodules with hooks of the wrapper around them: what is compiled in one piece must not reach across."""
        return ()

    @property
    def is_outdated(self) -> bool:
        """Other parameters need gradients than when it was wrapped: the module has to be prepared again."""
        if self.frozen is None:
            return False
        return [id(one) for one in self.frozen] != [id(one) for one in self.parameters if not one.requires_grad]


def check_method(prepared: Prepared, method: str, strategy_name: str) -> None:
    """Refuse a method that was not prepared.

    Raises:
        MethodNotPreparedError: It was not.
    """
    if method in prepared.methods:
        return
    kind = type(prepared.original).__name__
    if not hasattr(prepared.original, method):
        raise MethodNotPreparedError(
            f"{kind} has no method {method!r}.", code="method", do=f"Prepared: {', '.join(sorted(prepared.methods))}."
        )
    raise MethodNotPreparedError(
        f"{method!r} was not named when {kind} was prepared, so {strategy_name} would not sync its gradients.",
        code="method",
        do=f'Prepare with methods=("forward", "{method}"), or call model.original.{method}() if no gradients are '
        "needed.",
    )


def check_methods_exist(module: nn.Module, methods: Iterable[str]) -> frozenset[str]:
    """The method names as a set.

    Raises:
        MethodNotPreparedError: The module has no such method.
    """
    names = frozenset(methods)
    for name in sorted(names):
        if not callable(getattr(module, name, None)):
            raise MethodNotPreparedError(
                f"methods names {name!r}, but {type(module).__name__} has no method of that name.",
                code="method",
                do="Name methods that the module has.",
            )
    return names


def as_list(prepared: Prepared | Sequence[Prepared]) -> Sequence[Prepared]:
    """One or several prepared modules as a sequence."""
    return (prepared,) if isinstance(prepared, Prepared) else prepared
