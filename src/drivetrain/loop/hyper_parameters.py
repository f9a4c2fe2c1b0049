"""Constructor arguments, kept as `hparams`."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from types import FrameType
from typing import Any

from drivetrain.base.errors import ConfigError


class AttributeDict(dict[str, Any]):
    """A dict whose keys are also attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"no hyperparameter {name!r}; there are {', '.join(self) or 'none'}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


class HyperParameters:
    """Keeps constructor arguments as `self.hparams`."""

    @property
    def hparams(self) -> AttributeDict:
        """What `save_hyperparameters` kept."""
        kept: AttributeDict = self.__dict__.setdefault("_hparams", AttributeDict())
        return kept

    def save_hyperparameters(
        self, *args: Any, ignore: str | Iterable[str] | None = None, frame: FrameType | None = None, logger: bool = True
    ) -> None:
        """Keep the arguments of the calling `__init__` as `self.hparams`.

        Args:
            args: Names of the arguments to keep, or one mapping or namespace to keep instead; by default all arguments.
            ignore: Names to leave out.
            frame: The frame of the `__init__`; by default the caller's.
            logger: Write them to the run's loggers.
        """
        if frame is None:
            caller = inspect.currentframe()
            frame = caller.f_back if caller is not None else None
        assert frame is not None
        ignored = {ignore} if isinstance(ignore, str) else set(ignore or ())
        if len(args) == 1 and not isinstance(args[0], str):
            given = args[0] if isinstance(args[0], Mapping) else vars(args[0])
        else:
            given = _init_arguments(frame, type(self))
            unknown = [name for name in args if name not in given]
            if unknown:
                raise ConfigError(
                    f"save_hyperparameters names {', '.join(unknown)}, which __init__ does not have.",
                    code="hyperparameters",
                    do=f"It has {', '.join(given)}.",
                )
            given = {name: value for name, value in given.items() if not args or name in args}
        self.hparams.update({name: value for name, value in given.items() if name not in ignored})
        self.__dict__["_logs_hparams"] = logger


def _init_arguments(frame: FrameType, cls: type) -> dict[str, Any]:
    """The arguments of the outermost `__init__` of the class that runs above `frame`."""
    found: dict[str, Any] = {}
    current: FrameType | None = frame
    while current is not None and current.f_code.co_name == "__init__":
        owner = current.f_locals.get("__class__", cls)
        names, _varargs, keywords, values = inspect.getargvalues(current)
        if not (names and isinstance(values.get(names[0]), cls)) and not issubclass(cls, owner):
            break
        found = {name: values[name] for name in names[1:] if name != "__class__"}
        signature_only = inspect.signature(vars(owner)["__init__"]).parameters if isinstance(owner, type) else {}
        found = {name: value for name, value in found.items() if not signature_only or name in signature_only}
        if keywords:
            found.update(values[keywords])
        current = current.f_back
    return found
