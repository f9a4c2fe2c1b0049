"""What metric objects have gathered in an epoch that is not over, as a checkpoint holds it.

Such an object keeps its sums in attributes of its own, which are in no module's state. Tensors and plain data among
them are saved where the object can be found again: as an attribute of the module or of a part of it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from drivetrain.base.errors import CheckpointError
from drivetrain.base.tree import map_tensors, move_to, tensors_of
from drivetrain.checkpoint.plain_data import require_plain

_log = logging.getLogger("drivetrain.loop")
_OF_MODULES = frozenset(vars(nn.Module()))


def paths_of(module: nn.Module) -> dict[int, str]:
    """Where the metric objects of a module are, by their identity."""
    return {id(value): path for path, value in _objects_in(module)}


def object_state(metric: Any) -> dict[str, dict[str, Any]]:
    """The plain attributes of a metric object and of the modules in it, on the CPU."""
    return {path: _attributes_of(part) for path, part in _parts_of(metric)}


def restore_object(metric: Any, state: Mapping[str, Mapping[str, Any]]) -> None:
    """Put back what `object_state` gave; each tensor goes to the device of the metric's own."""
    for path, part in _parts_of(metric):
        for name, value in state.get(path, {}).items():
            device = _device_of(getattr(part, name, None)) or _device_of(list(vars(part).values())) or "cpu"
            setattr(part, name, move_to(value, torch.device(device)))


def find_objects(module: nn.Module, paths: Sequence[str]) -> dict[str, Any]:
    """The metric objects at these places, as far as they are there."""
    wanted = set(paths)
    found = {path: value for path, value in _objects_in(module) if path in wanted}
    for path in sorted(wanted - set(found)):
        _log.warning("The metric object %s of the checkpoint is not in the module: its epoch begins anew.", path)
    return found


def _objects_in(module: nn.Module) -> Iterator[tuple[str, Any]]:
    for prefix, part in module.named_modules():
        if prefix and _is_metric(part):
            yield prefix, part
        for name, value in vars(part).items():
            if not isinstance(value, (nn.Module, Tensor)) and _is_metric(value):
                yield f"{prefix}.{name}" if prefix else name, value


def _is_metric(value: Any) -> bool:
    return all(callable(getattr(type(value), name, None)) for name in ("update", "compute", "reset"))


def _parts_of(metric: Any) -> Iterator[tuple[str, Any]]:
    return iter(metric.named_modules()) if isinstance(metric, nn.Module) else iter([("", metric)])


def _attributes_of(part: Any) -> dict[str, Any]:
    plain = {}
    for name, value in vars(part).items():
        if name in _OF_MODULES:  # parameters and buffers are in the state of the module
            continue
        try:
            require_plain(value)
        except CheckpointError:
            continue
        plain[name] = map_tensors(lambda one: one.detach().to("cpu", copy=True), value)
    return plain


def _device_of(value: Any) -> torch.device | None:
    return next((one.device for one in tensors_of(value)), None)
