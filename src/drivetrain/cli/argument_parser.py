"""The parser of a training's command line: classes by path, and slips answered with the nearest name."""

from __future__ import annotations

import difflib
import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from drivetrain import callbacks, loggers
from drivetrain.base.errors import ConfigError
from drivetrain.base.optional import import_extra
from drivetrain.loggers.logger import Logger
from drivetrain.loop.callback import Callback
from drivetrain.loop.data_module import DataModule
from drivetrain.loop.module import Module
from drivetrain.strategies.strategy import Strategy
from drivetrain.trainer.trainer import Trainer

if TYPE_CHECKING:
    import jsonargparse
    from jsonargparse import Namespace as Namespace
else:
    jsonargparse = import_extra("jsonargparse", extra="cli", purpose="drivetrain.CLI")
    Namespace = jsonargparse.Namespace

# An option, a quoted name, or a value: what a message of jsonargparse names.
_NAME = re.compile(r"--([\w.]+)|'([\w.]+)'|Given value: ([\w.]+)")
_IDLE = (
    "Subtypes:",
    "Does not validate",
    "- Does not validate",
    "- Expected a <class 'NoneType",
    "Errors:",
    "Given value type:",
)
_BASES: tuple[type, ...] = (Module, DataModule, Callback, Logger, Strategy, Optimizer, LRScheduler)


class ArgumentParser(jsonargparse.ArgumentParser):
    """A parser of `jsonargparse` that knows modules, datamodules, callbacks, optimizers and schedulers.

    Args:
        args: As `jsonargparse.ArgumentParser` takes them.
        kwargs: Likewise.

    Attributes:
        callback_keys: Groups that hold a callback, which the trainer is given too.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **kwargs})
        self.callback_keys: list[str] = []

    def add_lightning_class_args(
        self, lightning_class: type, nested_key: str, subclass_mode: bool = False, required: bool = True
    ) -> None:
        """Add the arguments of a class as a group; a callback is given to the trainer too.

        Args:
            lightning_class: A trainer, module, datamodule or callback.
            nested_key: The group, such as `"model"`.
            subclass_mode: Take any subclass, by its path: `--model my_package.MyModule`.
            required: The class has to be named.
        """
        if issubclass(lightning_class, Callback):
            self.callback_keys.append(nested_key)
        if subclass_mode:
            self.add_subclass_arguments(lightning_class, nested_key, fail_untyped=False, required=required)
            return
        is_trainer = issubclass(lightning_class, Trainer)
        self.add_class_arguments(
            lightning_class, nested_key, fail_untyped=False, sub_configs=True, instantiate=not is_trainer
        )

    def add_optimizer_args(
        self, optim_class: type[Optimizer] | tuple[type[Optimizer], ...] = Optimizer, nested_key: str = "optimizer"
    ) -> None:
        """Add an optimizer by its class; it takes the place of `configure_optimizers`."""
        self._add_optional_class(optim_class, nested_key, skip={"params"})

    def add_lr_scheduler_args(
        self,
        lr_scheduler_class: type[LRScheduler] | tuple[type[LRScheduler], ...] = LRScheduler,
        nested_key: str = "lr_scheduler",
    ) -> None:
        """Add a scheduler of that optimizer, which advances after each epoch."""
        self._add_optional_class(lr_scheduler_class, nested_key, skip={"optimizer"})

    def _add_optional_class(self, kind: Any, key: str, *, skip: set[str]) -> None:
        self.add_subclass_arguments(kind, key, fail_untyped=False, required=False, instantiate=False, skip=skip)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Say what is wrong and what was probably meant, and end with status 2."""
        lines = [f"Did you mean {one!r}?" for one in self._nearest(_short(message))][:1]
        if any(action.dest == "config" for action in self._actions):  # not the parser of one class in it
            lines.append(f"All arguments: {self.prog} --help")
        error = ConfigError(_short(message), code="command-line", do="\n".join(lines))
        print(f"{self.prog}: ConfigError: {error}", file=sys.stderr)
        raise SystemExit(2)

    def _nearest(self, message: str) -> Iterator[str]:
        """Names that are known, for those of a message that are not."""
        own = {action.dest for action in self._actions}
        classes = {cls for base in _BASES for cls in _subclasses(base)}
        known = {*own, *(name for cls in classes for name in (cls.__name__, *_parameters(cls)))}
        parts = {dest.rpartition(".")[2]: dest for dest in sorted(own)}
        for word in ("".join(match) for match in _NAME.findall(message)):
            if word in known:
                continue
            near = difflib.get_close_matches(word, [*known, *parts], n=1, cutoff=0.75)
            if near:
                yield parts.get(near[0], near[0])


def import_named_classes() -> None:
    """Import what drivetrain has of callbacks and loggers, so that their bare names are understood."""
    for name in callbacks.__all__:
        getattr(callbacks, name)
    for module in pkgutil.iter_modules(loggers.__path__):
        importlib.import_module(f"{loggers.__name__}.{module.name}")


def _subclasses(base: Any) -> Iterable[type]:
    yield base
    for one in base.__subclasses__():
        yield from _subclasses(one)


def _parameters(cls: type) -> list[str]:
    try:
        return list(inspect.signature(cls).parameters)
    except (TypeError, ValueError):
        return []


def _short(message: str) -> str:
    """A message without the lists of types that it repeats for each part of a union."""
    lines = dict.fromkeys(line.strip() for line in message.splitlines())
    kept = [line.removeprefix("- ") for line in lines if line and not line.startswith(_IDLE)]
    return re.sub("<class '([^']*)'>", r"\1", "; ".join(kept).replace(":;", ":"))
