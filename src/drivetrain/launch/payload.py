"""Functions as bytes, by cloudpickle, so that a traceback from them still names their file."""

from __future__ import annotations

import io
import types
from collections import ChainMap
from collections.abc import Callable
from typing import Any

import cloudpickle


def dump_payload(obj: Any) -> bytes:
    """Pickle anything, functions of `__main__` and closures too; `pickle.loads` reads it."""
    buffer = io.BytesIO()
    _Pickler(buffer).dump(obj)
    return buffer.getvalue()


def named_code(make: Callable[..., types.CodeType], args: tuple[Any, ...], filename: str) -> types.CodeType:
    """Make a code object that knows the file it is from."""
    return make(*args).replace(co_filename=filename)


def _reduce_code(code: types.CodeType) -> tuple[Any, ...]:
    make, args = cloudpickle.Pickler.dispatch_table[types.CodeType](code)
    return named_code, (make, args, code.co_filename)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    # cloudpickle 3.1 writes "<dynamic-code>" for every file, so that a traceback shows no line of source.
    dispatch_table = ChainMap({types.CodeType: _reduce_code}, cloudpickle.Pickler.dispatch_table)
