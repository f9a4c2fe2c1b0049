"""Arguments of strategies as scripts spell them, brought to those that drivetrain's strategies have."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from drivetrain.base.errors import ConfigError

# Of strategies, and what does the same here.
_INSTEAD = {
    "backward_prefetch": "leave it out: what is gathered next is known from the parts' order",
    "checkpoint_io": "use ModelCheckpoint(dirpath=url): a store is chosen by the URL",
    "ddp_comm_wrapper": "use comm_hook='bf16', 'fp16' or a function of your own",
    "forward_prefetch": "leave it out: what is gathered next is known from the parts' order",
    "ignored_modules": "set such modules up apart from the others",
    "mixed_precision": "use Trainer(precision=...), or policy=MixedPrecisionPolicy(...)",
    "model_averaging_period": "use strategy=LocalSGD(sync_every=...)",
    "parallel_devices": "use Trainer(devices=...)",
    "precision": "use Trainer(precision=...)",
    "precision_plugin": "use Trainer(precision=...)",
    "process_group": "use num_replicas",
    "sync_module_states": "leave it out: all ranks get what rank 0 holds",
    "use_orig_params": "leave it out: parameters keep their names and their number",
}
_STARTS = {"popen": "script", "spawn": "spawn", "fork": "fork"}


def own_arguments(kind: type, own: Mapping[str, Any], familiar: Mapping[str, tuple[str, Any]]) -> dict[str, Any]:
    """The arguments of a strategy, some of them in a familiar spelling.

    Args:
        kind: The strategy.
        own: Those in its own.
        familiar: Own name to the familiar one and its value; `None` where it was not given.

    Raises:
        ConfigError: One is given in both spellings, or is none of the strategy's.
    """
    arguments = dict(own)
    for name, (spelling, value) in familiar.items():
        if value is None:
            continue
        if name in own:
            raise ConfigError(
                f"{kind.__name__} got {spelling}={value!r} and {name}={own[name]!r}, which say the same.",
                code="spelled-twice",
                do="Drop one of the two.",
            )
        arguments[name] = value
    known = list(inspect.signature(kind).parameters)
    for name in arguments:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            instead = _INSTEAD.get(name, f"did you mean {near[0]!r}?" if near else "all names: docs/protocol.md")
            raise ConfigError(
                f"{kind.__name__} has no argument {name!r}.",
                code="unknown-argument",
                do=f"{instead[0].upper()}{instead[1:]}{'' if instead.endswith('?') else '.'}",
            )
    return arguments


def seconds(timeout: timedelta | float | None) -> float | None:
    """A length of time in seconds."""
    return timeout.total_seconds() if isinstance(timeout, timedelta) else timeout


def own_start(start_method: str | None) -> str | None:
    """What `start` is called.

    Raises:
        ConfigError: Ranks are not started in that way.
    """
    if start_method is None or start_method in _STARTS:
        return _STARTS.get(start_method or "")
    raise ConfigError(
        f"start_method={start_method!r} is no way to start ranks.",
        code="start-method",
        do=f"Use {', '.join(map(repr, _STARTS))}.",
    )
