"""Which parts of a module have a parameter group of their own, and how they are brought to the device and sharded."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from drivetrain.base.errors import ConfigError, OptimizerError
from drivetrain.strategies.module_choice import Policy, chosen_modules
from drivetrain.strategies.prepared import Prepared


@dataclass(frozen=True, eq=False)
class Part:
    """What is gathered and reduced by collectives of its own: torch's "FSDP parameter group".

    Attributes:
        number: Its place among the parts of its module.
        module: The part of the user's module; for the rest of it, the router.
        group: torch's own object.
        names: Its parameters, as the user's module calls them.
    """

    number: int
    module: Any
    group: Any
    names: tuple[str, ...]

    @property
    def is_pending(self) -> bool:
        """Gradients of earlier micro-batches wait here to be reduced."""
        return self.group._partial_reduce_output is not None or any(
            one.unsharded_accumulated_grad is not None or one.unsharded_param.grad is not None
            for one in self.group.fsdp_params
        )


@dataclass(frozen=True, eq=False)
class ShardedModule(Prepared):
    """A prepared module whose parameters are sharded.

    Attributes:
        number: Its place among the modules that the strategy has prepared.
        parts: All with parameters, in the order of registration.
        plain: Parameters that are not sharded: those without a dim.
        replaced: The sharded parameter, by the id of the one that the user's module had before.
    """

    number: int = 0
    parts: tuple[Part, ...] = ()
    plain: tuple[nn.Parameter, ...] = ()
    replaced: dict[int, tuple[weakref.ref[nn.Parameter], nn.Parameter]] = field(default_factory=dict, repr=False)

    @property
    def hooked(self) -> tuple[nn.Module, ...]:
        """The parts, without the rest of the module."""
        return tuple(part.module for part in self.parts if part.module is not self.wrapped)

    @property
    def root(self) -> Any:
        """torch's state of the whole."""
        wrapped: Any = self.wrapped
        return wrapped._get_fsdp_state()

    @property
    def is_synced(self) -> bool:
        """Backward reduces gradients over all ranks."""
        return all(part.group.reduce_grads and part.group.all_reduce_grads for part in self.parts[:1])

    @property
    def is_running(self) -> bool:
        """A forward of it has begun and not ended."""
        return self.root._state_ctx.iter_forward_root is not None

    def forget_pass(self) -> None:
        """After an exception in a forward or backward: the next one begins anew."""
        wrapped: Any = self.wrapped
        wrapped.reset_iter_state()

    def reshard(self) -> None:
        """Free what a forward without backward left unsharded: an optimizer step would not reach it."""
        for part in self.parts:
            if part.group.is_unsharded:
                part.group._to_sharded()


def sharded(prepared: Prepared) -> ShardedModule:
    """A prepared module as what FSDP made of it."""
    assert isinstance(prepared, ShardedModule), f"{prepared} was prepared by another strategy"
    return prepared


def fill_accumulated(group: Any) -> list[Any]:
    """Where some gradients of a group were accumulated in another dtype, accumulate from zeros for the others, too.

    Otherwise torch (2.13) finds gradients of two dtypes when it reduces the group.

    Returns:
        torch's objects of the trainable parameters.
    """
    trainable = [one for one in group.fsdp_params if one.sharded_param.requires_grad]
    if any(one.unsharded_accumulated_grad is not None for one in trainable):
        for one in trainable:
            if one.unsharded_accumulated_grad is None:
                zeros = torch.zeros_like(one.unsharded_param, dtype=group._reduce_dtype)
                one.unsharded_accumulated_grad = zeros
    return trainable


def choose_parts(module: nn.Module, policy: Policy) -> list[nn.Module]:
    """The submodules with a parameter group of their own, inner ones first.

    One that shares a parameter with what is outside of it has none: a parameter belongs to one group.

    Args:
        module: The user's module.
        policy: See `chosen_modules`. By default each module in an `nn.ModuleList`; of lists inside of such a module,
            none.

    Raises:
        ConfigError: The policy is none.
    """
    chosen = list(_in_lists(module)) if policy is None else chosen_modules(module, policy, "shard")
    uses = _uses(module)
    unique = {id(one): one for one in chosen if one is not module and _has_forward(one)}
    found = [one for one in unique.values() if (own := _uses(one)) and all(uses[key] == own[key] for key in own)]
    order = {id(one): place for place, one in enumerate(module.modules())}
    return sorted(found, key=lambda one: -order[id(one)])


def checkpoint_activations(module: nn.Module, policy: Policy) -> None:
    """Let submodules keep nothing of their forward for backward, and run it again there; before they are sharded.

    By torch's composable hooks, which change neither names nor structure.

    Args:
        module: The user's module.
        policy: See `chosen_modules`; `None` for none.

    Raises:
        ConfigError: The policy is none.
    """
    if policy is None:
        return
    from torch.distributed._composable.checkpoint_activation import checkpoint  # only here: it takes a while

    for one in chosen_modules(module, policy, "activation_checkpointing_policy"):
        checkpoint(one)


def _in_lists(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        if not isinstance(child, nn.ModuleList):
            yield from _in_lists(child)
            continue
        for one in child:
            if _has_forward(one):
                yield one
            else:
                yield from _in_lists(nn.ModuleList([one]) if isinstance(one, nn.ModuleList) else one)


def _has_forward(module: nn.Module) -> bool:
    return type(module).forward is not nn.Module.forward


def _uses(module: nn.Module) -> Counter[int]:
    """How often each parameter is somebody's, by id."""
    return Counter(id(p) for one in module.modules() for p in one._parameters.values() if p is not None)


def adopt_parameters(optimizer: Optimizer, modules: Sequence[ShardedModule]) -> None:
    """Put sharded parameters in the place of those that they replaced.

    Raises:
        OptimizerError: The optimizer has state for one of those.
    """
    for group in optimizer.param_groups:
        for index, parameter in enumerate(group["params"]):
            for module in modules:
                old, new = module.replaced.get(id(parameter), (lambda: None, parameter))
                if old() is not parameter:
                    continue
                if parameter in optimizer.state:
                    raise OptimizerError(
                        f"{type(optimizer).__name__} has made steps before its module was set up; its state is not "
                        "sharded.",
                        code="optimizer-state",
                        do="Set the module up first, and load the optimizer's state from a checkpoint.",
                    )
                group["params"][index] = new


def with_sync_batchnorm(module: nn.Module, device: torch.device) -> nn.Module:
    """The module with batch norms that take their statistics over all ranks.

    Raises:
        ConfigError: There is no GPU.
    """
    if device.type != "cuda":
        raise ConfigError(
            f"sync_batchnorm=True on {device.type}: torch has SyncBatchNorm for CUDA only.",
            code="sync-batchnorm",
            do="Switch it off, or use GPUs.",
        )
    converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(module)
    return converted
