"""`torch.compile`, in place: a module keeps its class, its structure and the names of its parameters.

Compiled are calls of modules, not their steps, inside of whatever a strategy wraps around them (docs/adr/0011). A
wrapper that `torch.compile(module)` made is taken off, and what it wraps is compiled in the same way.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from drivetrain.base.errors import ConfigError
from drivetrain.strategies.prepared import Prepared, Traits

Compile = bool | Mapping[str, Any] | None


@dataclass(frozen=True)
class Compiler:
    """How modules are compiled: with options of `torch.compile`, or as the user has done it.

    Attributes:
        options: Arguments of `torch.compile`.
        context: torch's own, from the wrapper of a module that was compiled already.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    context: Any = None

    def compile(self, module: nn.Module) -> None:
        """Compile calls of a module, unless they are compiled.

        Raises:
            ConfigError: torch refuses the options.
        """
        if module._compiled_call_impl is not None:
            return
        function = _call_of(module)
        try:
            made: Any = torch.compile(function, **self.options) if self.context is None else self.context(function)
        except (RuntimeError, TypeError, ValueError) as cause:
            raise ConfigError(
                f"torch.compile refuses {dict(self.options)}: {cause}",
                code="compile-options",
                do="Give arguments of torch.compile.",
            ) from cause
        made.compiler = self
        module._compiled_call_impl = made


def _call_of(module: nn.Module) -> Callable[..., Any]:
    """What is compiled of a module: hooks stay outside, where that can be."""
    # torch (2.13) compiles no frame of its own modules' files unless it is called from another file.
    if not type(module).forward.__module__.startswith("torch.nn."):
        return module._call_impl

    def call(*args: Any, **kwargs: Any) -> Any:
        return module._call_impl(*args, **kwargs)

    return call


def make_compiler(given: Compile | Compiler) -> Compiler | None:
    """What was asked for; `None` for nothing.

    Raises:
        ConfigError: It is neither a bool nor arguments of `torch.compile`.
    """
    if given is None or isinstance(given, (bool, Compiler)):
        return given if isinstance(given, Compiler) else Compiler() if given else None
    known = list(inspect.signature(torch.compile).parameters)[1:]
    unknown = [key for key in given if key not in known] if isinstance(given, Mapping) else [given]
    if unknown:
        raise ConfigError(
            f"compile={given!r} holds {unknown[0]!r}, which is no argument of torch.compile.",
            code="compile-options",
            do=f"Use True, or a dict with some of {', '.join(known)}.",
        )
    return Compiler(dict(given))


def take_wrappers_off(module: Any) -> tuple[Any, Compiler | None]:
    """A module without the wrappers of `torch.compile`; submodules that had one are compiled in place.

    Returns:
        The module, and how it was compiled as a whole, which is left to be done; `None` if it was not.
    """
    compiler: Compiler | None = None
    while _is_wrapper(module):
        module, compiler = module._orig_mod, Compiler(context=module.dynamo_ctx)
    for parent in list(module.modules()) if isinstance(module, nn.Module) else []:
        for name, child in parent._modules.items():
            if child is not None and _is_wrapper(child):
                own, found = take_wrappers_off(child)
                parent._modules[name] = own
                assert found is not None, f"{name} is a wrapper"
                found.compile(own)
    return module, compiler


def _is_wrapper(module: Any) -> bool:
    made_by = sys.modules.get("torch._dynamo.eval_frame")  # it is not imported before something is compiled
    return made_by is not None and isinstance(module, made_by.OptimizedModule)


def is_compiled(module: nn.Module) -> bool:
    """Calls of the module, or of a part of it, are compiled."""
    return any(one._compiled_call_impl is not None for one in module.modules())


def compile_in_place(prepared: Prepared, compiler: Compiler | None, traits: Traits) -> None:
    """Compile a prepared module: calls of it, and of its parts by whoever else calls them.

    What an earlier setup has compiled in another way is undone; what the user has compiled in place stays.

    Args:
        prepared: The module.
        compiler: How; `None` for not at all.
        traits: Of the strategy that has prepared it.

    Raises:
        ConfigError: There is nothing to compile, or the strategy runs copies that torch would not compile.
    """
    module = prepared.original
    for one in module.modules():
        before = getattr(one._compiled_call_impl, "compiler", None)
        if before is not None and before.context is None and before != compiler:
            one._compiled_call_impl = None
    if compiler is not None:
        parts = list(parts_to_compile(module, prepared.hooked))
        if not parts:
            raise ConfigError(
                f"compile was given, but {type(module).__name__} has no forward, and no submodule with parameters: "
                "there is nothing to compile.",
                code="compile-nothing",
                do="Move the computation into a submodule's forward, or leave compile out.",
            )
        for one in parts:
            compiler.compile(one)
    if not traits.compiles and is_compiled(module):
        raise ConfigError(
            f"strategy={traits.name!r} runs copies of {type(module).__name__}, which torch does not compile.",
            code="compile-strategy",
            do="Use strategy='ddp', or do not compile.",
        )


def parts_to_compile(module: nn.Module, hooked: tuple[nn.Module, ...] = ()) -> Iterator[nn.Module]:
    """A module and its direct parts, as far as they have a `forward` and parameters.

    Each is compiled when something that is not compiled calls it. A module around hooks is none: its parts are.

    Args:
        module: The user's.
        hooked: Submodules with hooks of a wrapper.
    """
    if _can_compile(module, hooked):
        yield module
    for child in module.children():
        if _can_compile(child, hooked):
            yield child
        else:
            yield from parts_to_compile(child, hooked)


def _can_compile(module: nn.Module, hooked: tuple[nn.Module, ...]) -> bool:
    has_forward = type(module).forward is not nn.Module.forward
    return (
        has_forward
        and next(module.parameters(), None) is not None
        and not any(one in hooked for one in module.modules() if one is not module)
    )
