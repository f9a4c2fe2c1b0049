"""Which submodules somebody means: classes, a function of a module, or one of torch's wrap policies."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

from torch import nn

from drivetrain.base.errors import ConfigError

Policy = Callable[..., Any] | Collection[type[nn.Module]] | type[nn.Module] | None


def chosen_modules(module: nn.Module, policy: Any, name: str) -> list[nn.Module]:
    """The submodules that a policy names, and the module itself if it does.

    Args:
        module: The user's module.
        policy: Classes; a function of a submodule; a `ModuleWrapPolicy` or `CustomPolicy` of `torch.distributed.fsdp`;
            or a function with arguments `module`, `recurse` and `nonwrapped_numel`, such as
            `size_based_auto_wrap_policy`, which is asked as torch asks it: never about the module itself.
        name: Of the argument, for the error.

    Raises:
        ConfigError: It is none of these, or says more than which modules.
    """
    if hasattr(policy, "_run_policy"):
        named: Mapping[nn.Module, Any] = policy._run_policy(module, ignored_modules=set(), root_kwargs={})
        if any(named.values()):
            raise _refused(policy, name, "says more of some modules than that they are chosen")
        return list(named)
    if callable(policy) and not isinstance(policy, type):
        if not _is_asked_twice(policy):
            return [one for one in module.modules() if policy(one)]
        found: list[nn.Module] = []
        _ask(module, policy, found, is_root=True)
        return found
    kinds: Any = (policy,) if isinstance(policy, type) else tuple(policy) if isinstance(policy, Collection) else (None,)
    if not all(isinstance(kind, type) and issubclass(kind, nn.Module) for kind in kinds):
        raise _refused(policy, name, "is no way to choose submodules")
    return [one for one in module.modules() if isinstance(one, kinds)]


def _is_asked_twice(policy: Callable[..., Any]) -> bool:
    """Before and after what is inside of a module."""
    try:
        return "recurse" in inspect.signature(policy).parameters
    except ValueError:  # written in C
        return False


def _ask(module: nn.Module, policy: Callable[..., Any], found: list[nn.Module], *, is_root: bool) -> int:
    """Collect what the policy chooses, inner modules first; elements of parameters that belong to what it chose."""
    num_all = sum(parameter.numel() for parameter in module.parameters())
    if not policy(module=module, recurse=True, nonwrapped_numel=num_all):
        return 0
    num_inside = sum(_ask(child, policy, found, is_root=False) for child in module.children())
    if is_root or not policy(module=module, recurse=False, nonwrapped_numel=num_all - num_inside):
        return num_inside
    found.append(module)
    return num_all


def _refused(policy: Any, name: str, why: str) -> ConfigError:
    return ConfigError(
        f"{name}={policy!r} {why}.",
        code="shard-policy",
        do="Give nn.Module classes, a function of a module, a ModuleWrapPolicy of torch, or None.",
    )
