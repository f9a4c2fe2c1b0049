"""Hyperparameters as files and dashboards take them."""

from __future__ import annotations

import json
import math
import re
from argparse import Namespace
from collections.abc import Mapping
from typing import Any

_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Words that YAML 1.1 reads as something else than a string.
_YAML_WORDS = frozenset({"y", "n", "yes", "no", "true", "false", "on", "off", "null"})


def as_mapping(params: Mapping[str, Any] | Namespace | None) -> dict[str, Any]:
    """A mapping or a namespace as a dict with text keys."""
    if params is None:
        return {}
    return {str(key): value for key, value in (vars(params) if isinstance(params, Namespace) else params).items()}


def flatten(params: Mapping[str, Any], *, above: str = "") -> dict[str, bool | int | float | str]:
    """Nested mappings as one level with names such as `optimizer/lr`; what is not a number or text becomes text."""
    flat: dict[str, bool | int | float | str] = {}
    for key, value in params.items():
        name = f"{above}{key}"
        if isinstance(value, (Mapping, Namespace)):
            flat.update(flatten(as_mapping(value), above=f"{name}/"))
        else:
            value = plain_number(value)
            flat[name] = value if isinstance(value, (bool, int, float, str)) else str(value)
    return flat


def to_yaml(params: Mapping[str, Any]) -> str:
    """One line for each name: `name: value`, where the value is JSON that YAML reads alike."""
    return "".join(f"{_key(key)}: {_value(value)}\n" for key, value in params.items())


def _key(key: str) -> str:
    is_plain = _PLAIN_KEY.fullmatch(key) and key.lower() not in _YAML_WORDS
    return key if is_plain else json.dumps(key, ensure_ascii=False)


def _value(value: Any) -> str:
    value = plain_number(value)
    if value is None or isinstance(value, (bool, int)):
        return json.dumps(value)
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, (Mapping, Namespace)):
        inner = as_mapping(value).items()
        return "{" + ", ".join(f"{json.dumps(key, ensure_ascii=False)}: {_value(one)}" for key, one in inner) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_value(one) for one in value) + "]"
    return json.dumps(str(value), ensure_ascii=False)


def _float(value: float) -> str:
    if math.isnan(value):
        return ".nan"
    if math.isinf(value):
        return ".inf" if value > 0 else "-.inf"
    text = repr(value)
    # YAML 1.1 takes 1e-05 for a string: its numbers have a point.
    return text.replace("e", ".0e") if "e" in text and "." not in text else text


def plain_number(value: Any) -> Any:
    """Numbers of NumPy and tensors of one element as Python's own; subclasses of int and float likewise."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if callable(getattr(value, "item", None)) and getattr(value, "shape", None) == ():
        return value.item()
    return value
